// What Apache Kafka 4.4.0's StandardAuthorizer decides over random entries: the vectors of test_standard_authorizer.py.
// java -cp "JARS/*" AclVectors.java 40 | gzip -9n > vectors.json.gz
import java.net.InetAddress;
import java.util.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.network.*;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.security.auth.*;
import org.apache.kafka.common.requests.*;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.metadata.authorizer.*;
import org.apache.kafka.server.authorizer.*;

public class AclVectors {
    static final String[] PRINCIPALS = {"alice", "bob", "ANONYMOUS"};
    static final String[] HOSTS = {"10.0.0.1", "10.0.0.2", "::1"};
    static final int[] OPS = {3, 4, 5, 6, 7, 8, 10, 11};
    static final int[] TYPES = {2, 3};
    static final String[] NAMES = {"a", "ab", "abc", "b", "ba", "*", "a-b", "hardcode"};
    static final String[] ACL_NAMES = {"a", "ab", "abc", "b", "ba", "*", "*", "abcd", "hard"};
    static final String[] ACL_PRINCIPALS = {"User:alice", "User:alice", "User:bob", "User:*", "Group:alice"};
    static final String[] ACL_HOSTS = {"*", "*", "10.0.0.1", "10.0.0.0/24", "10.0.0.2/31", "fe80::/10", "::/64", "10.0.0.0/99",
        "0:0:0:0:0:0:0:1", "::1"};
    static final int[] ACL_OPS = {2, 3, 4, 5, 6, 7, 8, 10, 11};

    static AuthorizableRequestContext context(String principal, String host) throws Exception {
        RequestHeader header = new RequestHeader(ApiKeys.PRODUCE, (short) 9, "", 0);
        return new RequestContext(header, "1", InetAddress.getByName(host), Optional.empty(),
            new KafkaPrincipal("User", principal), ListenerName.normalised("PLAINTEXT"), SecurityProtocol.PLAINTEXT,
            ClientInformation.EMPTY, false);
    }

    public static void main(String[] args) throws Exception {
        Random random = new Random(431);
        StringBuilder out = new StringBuilder("[\n");
        int cases = Integer.parseInt(args[0]);
        for (int c = 0; c < cases; c++) {
            StandardAuthorizer authorizer = new StandardAuthorizer();
            Map<String, Object> configs = new HashMap<>();
            boolean allow = c % 2 == 1;
            configs.put("allow.everyone.if.no.acl.found", "" + allow);
            if (c % 5 == 4) configs.put("super.users", "User:bob; User:carol");
            authorizer.configure(configs);
            authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), new LinkedHashMap<>()));
            Set<StandardAcl> acls = new LinkedHashSet<>();
            int count = c == 0 || c == 1 ? 0 : 1 + random.nextInt(14);
            while (acls.size() < count) {
                acls.add(new StandardAcl(
                    ResourceType.fromCode((byte) TYPES[random.nextInt(2)]),
                    ACL_NAMES[random.nextInt(ACL_NAMES.length)],
                    random.nextInt(5) < 3 ? PatternType.LITERAL : PatternType.PREFIXED,
                    ACL_PRINCIPALS[random.nextInt(ACL_PRINCIPALS.length)],
                    ACL_HOSTS[random.nextInt(ACL_HOSTS.length)],
                    AclOperation.fromCode((byte) ACL_OPS[random.nextInt(ACL_OPS.length)]),
                    random.nextInt(10) < 7 ? AclPermissionType.ALLOW : AclPermissionType.DENY));
            }
            for (StandardAcl acl : acls) authorizer.addAcl(Uuid.randomUuid(), acl);
            authorizer.completeInitialLoad();
            out.append("{\"allow\":").append(allow).append(",\"super\":").append(c % 5 == 4).append(",\"acls\":[");
            boolean first = true;
            for (StandardAcl a : acls) {
                if (!first) out.append(",");
                first = false;
                out.append("[").append(a.resourceType().code()).append(",\"").append(a.resourceName()).append("\",")
                    .append(a.patternType().code()).append(",\"").append(a.principal()).append("\",\"").append(a.host())
                    .append("\",").append(a.operation().code()).append(",").append(a.permissionType().code()).append("]");
            }
            StringBuilder bits = new StringBuilder();
            StringBuilder any = new StringBuilder();
            for (String principal : PRINCIPALS) for (String host : HOSTS) {
                AuthorizableRequestContext context = context(principal, host);
                for (int op : OPS) for (int type : TYPES) {
                    AclOperation operation = AclOperation.fromCode((byte) op);
                    ResourceType resource = ResourceType.fromCode((byte) type);
                    for (String name : NAMES) {
                        Action action = new Action(operation, new ResourcePattern(resource, name, PatternType.LITERAL), 1, false, false);
                        bits.append(authorizer.authorize(context, List.of(action)).get(0) == AuthorizationResult.ALLOWED ? '1' : '0');
                    }
                    any.append(authorizer.authorizeByResourceType(context, operation, resource) == AuthorizationResult.ALLOWED ? '1' : '0');
                }
            }
            out.append("],\"one\":\"").append(new java.math.BigInteger("1" + bits, 2).toString(16))
                .append("\",\"any\":\"").append(new java.math.BigInteger("1" + any, 2).toString(16)).append("\"}");
            out.append(c + 1 < cases ? ",\n" : "\n");
        }
        System.out.print(out.append("]\n"));
    }
}
