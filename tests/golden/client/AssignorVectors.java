// Writes assignments of the assignors of kafka-clients 4.3.1, one JSON object a line: assignors.jsonl.gz.
//     javac -cp "kafka-clients-4.3.1.jar:..." AssignorVectors.java && java -cp ... AssignorVectors | gzip -9n

import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.common.*;
import java.nio.ByteBuffer;
import java.util.*;

public class AssignorVectors {
    static Random rng = new Random(848);
    static String json(Collection<TopicPartition> tps) {
        StringBuilder b = new StringBuilder("[");
        List<TopicPartition> sorted = new ArrayList<>(tps);
        sorted.sort(Comparator.comparing(TopicPartition::topic).thenComparing(TopicPartition::partition));
        for (TopicPartition tp : sorted) { if (b.length() > 1) b.append(","); b.append("[\"" + tp.topic() + "\"," + tp.partition() + "]"); }
        return b.append("]").toString();
    }
    static String strings(Collection<String> names) {
        StringBuilder b = new StringBuilder("[");
        for (String n : names) { if (b.length() > 1) b.append(","); b.append("\"" + n + "\""); }
        return b.append("]").toString();
    }
    static String hex(ByteBuffer data) {
        if (data == null) return "null";
        ByteBuffer d = data.duplicate(); d.rewind();
        StringBuilder b = new StringBuilder("\"");
        while (d.hasRemaining()) b.append(String.format("%02x", d.get()));
        return b.append("\"").toString();
    }
    public static void main(String[] args) throws Exception {
        ConsumerPartitionAssignor[] kinds = {new RangeAssignor(), new RoundRobinAssignor(), new StickyAssignor(), new CooperativeStickyAssignor()};
        for (int round = 0; round < 60; round++) for (int k = 0; k < kinds.length; k++) {
            boolean racks = rng.nextInt(2) == 0;
            int nodes = 1 + rng.nextInt(4);
            List<Node> ns = new ArrayList<>();
            for (int i = 0; i < nodes; i++) ns.add(new Node(i, "h", 1, racks ? "r" + i % 3 : null));
            int topicCount = 1 + rng.nextInt(4);
            List<String> names = new ArrayList<>();
            Map<String,Integer> counts = new TreeMap<>();
            List<PartitionInfo> infos = new ArrayList<>();
            for (int t = 0; t < topicCount; t++) {
                String name = "topic-" + (char)('a' + t); names.add(name);
                int count = 1 + rng.nextInt(7); counts.put(name, count);
                for (int p = 0; p < count; p++) {
                    int rf = 1 + rng.nextInt(nodes);
                    List<Node> copy = new ArrayList<>(ns); Collections.shuffle(copy, rng);
                    Node[] reps = copy.subList(0, rf).toArray(new Node[0]);
                    infos.add(new PartitionInfo(name, p, reps[0], reps, reps));
                }
            }
            boolean same = rng.nextInt(2) == 0;
            int members = 1 + rng.nextInt(6);
            Map<String, Subscription> subs = new HashMap<>();
            Map<String, List<TopicPartition>> prior = new HashMap<>();
            // three rebalances in a row, with members that come and go
            List<String> ids = new ArrayList<>();
            for (int m = 0; m < members; m++) ids.add("member-" + Integer.toHexString(rng.nextInt(1 << 20)));
            Map<String, List<String>> topicsOf = new HashMap<>();
            Map<String, Integer> generationOf = new HashMap<>();
            int steps = k < 2 ? 1 : 3;
            for (int step = 0; step < steps; step++) {
                if (step > 0) {
                    if (rng.nextInt(2) == 0 && ids.size() > 1) ids.remove(rng.nextInt(ids.size()));
                    if (rng.nextInt(2) == 0) ids.add("member-" + Integer.toHexString(rng.nextInt(1 << 20)));
                }
                Map<String, Subscription> input = new HashMap<>();
                StringBuilder line = new StringBuilder("{\"assignor\":\"" + kinds[k].name() + "\",\"members\":[");
                boolean first = true;
                for (String id : ids) {
                    List<String> topics = topicsOf.get(id);
                    if (topics == null) {
                        topics = new ArrayList<>();
                        for (String n : names) if (same || rng.nextInt(3) > 0) topics.add(n);
                        if (topics.isEmpty()) topics.add(names.get(0));
                        topicsOf.put(id, topics);
                    }
                    String rack = racks ? "r" + Math.floorMod(id.hashCode(), 4) : null;
                    String instance = k < 2 && Math.floorMod(id.hashCode(), 3) == 0 ? "i" + id : null;
                    List<TopicPartition> owned = prior.getOrDefault(id, new ArrayList<>());
                    int generation = generationOf.getOrDefault(id, -1);
                    ByteBuffer data = null;
                    if (k == 2 && generation >= 0) {
                        StickyAssignor one = new StickyAssignor();
                        one.onAssignment(new Assignment(owned), new ConsumerGroupMetadata("g", generation, id, Optional.empty()));
                        data = one.subscriptionUserData(new HashSet<>(topics));
                    }
                    List<TopicPartition> sent = k == 3 ? owned : Collections.emptyList();
                    Subscription s = new Subscription(topics, data, sent, generation, Optional.ofNullable(rack));
                    s.setGroupInstanceId(Optional.ofNullable(instance));
                    input.put(id, s);
                    if (!first) line.append(","); first = false;
                    line.append("{\"id\":\"" + id + "\",\"topics\":" + strings(topics) + ",\"owned\":" + json(sent) + ",\"generation\":" + generation
                        + ",\"rack\":" + (rack == null ? "null" : "\"" + rack + "\"") + ",\"instance\":" + (instance == null ? "null" : "\"" + instance + "\"")
                        + ",\"data\":" + hex(data) + "}");
                }
                Cluster cluster = new Cluster("c", ns, infos, Collections.emptySet(), Collections.emptySet());
                Map<String, Assignment> out = kinds[k].assign(cluster, new GroupSubscription(input)).groupAssignment();
                line.append("],\"topics\":{");
                first = true;
                for (String n : names) {
                    if (!first) line.append(","); first = false;
                    line.append("\"" + n + "\":[");
                    for (int p = 0; p < counts.get(n); p++) {
                        if (p > 0) line.append(",");
                        TreeSet<String> rs = new TreeSet<>();
                        for (PartitionInfo i : infos) if (i.topic().equals(n) && i.partition() == p) for (Node node : i.replicas()) if (node.rack() != null) rs.add(node.rack());
                        line.append(strings(rs));
                    }
                    line.append("]");
                }
                line.append("},\"assigned\":{");
                first = true;
                for (String id : new TreeSet<>(out.keySet())) {
                    if (!first) line.append(","); first = false;
                    line.append("\"" + id + "\":" + json(out.get(id).partitions()));
                    // sometimes a member misses a generation, and claims what it had
                    if (rng.nextInt(5) > 0) { prior.put(id, out.get(id).partitions()); generationOf.put(id, step + 1); }
                }
                System.out.println(line.append("}}"));
            }
        }
    }
}
