import java.net.InetAddress;
import java.util.*;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.*;
import org.apache.kafka.common.metrics.stats.*;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.network.Session;
import org.apache.kafka.server.config.ClientQuotaManagerConfig;
import org.apache.kafka.server.config.ReplicationQuotaManagerConfig;
import org.apache.kafka.server.quota.*;

/** Prints what Apache Kafka's own classes measure and decide for random series of records, as JSON lines. */
public class QuotaVectors {
    static final class Virtual implements Time {
        long ms = 1_000_000;
        public long milliseconds() { return ms; }
        public long nanoseconds() { return ms * 1_000_000; }
        public void sleep(long by) { ms += by; }
        public void waitObject(Object o, Supplier<Boolean> c, long d) { }
    }

    static String text(Object o) {
        if (o instanceof Double d && (d.isNaN() || d.isInfinite())) return "\"" + d + "\"";
        if (o instanceof String s) return "\"" + s + "\"";
        if (o instanceof List<?> l) {
            StringJoiner j = new StringJoiner(",", "[", "]");
            l.forEach(each -> j.add(text(each)));
            return j.toString();
        }
        return String.valueOf(o);
    }

    static long step(Random random, long window) {
        return switch (random.nextInt(12)) {
            case 0 -> window * (1 + random.nextInt(4)) + random.nextInt(50);
            case 1 -> window;
            case 2 -> window * 15;
            case 3, 4 -> 0;
            default -> random.nextInt((int) (window / 3));
        };
    }

    static void stats(int seed, long window, int samples) {
        Random random = new Random(seed);
        MetricConfig config = new MetricConfig().timeWindow(window, TimeUnit.MILLISECONDS).samples(samples);
        Rate rate = new Rate();
        SimpleRate simple = new SimpleRate();
        Rate counts = new Rate(new WindowedCount());
        Percentiles constant = new Percentiles(400, 0, 1000, Percentiles.BucketSizing.CONSTANT);
        Percentiles linear = new Percentiles(400, 1000, Percentiles.BucketSizing.LINEAR);
        List<MeasurableStat> all = List.of(rate, simple, counts, new WindowedSum(), new Avg(), new Max(), new Min(), new CumulativeSum());
        List<Object> rows = new ArrayList<>();
        long now = 5_000;
        for (int i = 0; i < 150; i++) {
            now += step(random, window);
            double value = switch (random.nextInt(4)) {
                case 0 -> random.nextInt(100_000);
                case 1 -> -random.nextInt(500) / 7.0;
                default -> random.nextDouble() * 1100;
            };
            boolean recorded = random.nextInt(5) > 0;
            List<Object> row = new ArrayList<>(List.of(now, recorded ? (Object) value : "measure"));
            for (MeasurableStat stat : all) {
                if (recorded) stat.record(config, value, now);
                row.add(stat.measure(config, now));
            }
            row.add(rate.windowSize(config, now));
            for (Percentiles each : List.of(constant, linear)) {
                if (recorded) each.record(config, value, now);
                row.add(each.value(config, now, 0.5));
                row.add(each.value(config, now, 0.99));
            }
            rows.add(row);
        }
        System.out.println("{\"kind\":\"stats\",\"window_ms\":" + window + ",\"samples\":" + samples + ",\"rows\":" + text(rows) + "}");
    }

    static void bucket(int seed, long window, int samples, double quota) {
        Random random = new Random(seed);
        MetricConfig config = new MetricConfig().timeWindow(window, TimeUnit.MILLISECONDS).samples(samples).quota(Quota.upperBound(quota));
        TokenBucket bucket = new TokenBucket();
        List<Object> rows = new ArrayList<>();
        long now = 0;
        for (int i = 0; i < 150; i++) {
            now += step(random, window);
            double value = random.nextInt((int) (quota * samples) + 2) * (random.nextInt(9) == 0 ? 3 : 0.7);
            bucket.record(config, value, now);
            rows.add(List.of(now, value, bucket.measure(config, now)));
        }
        System.out.println("{\"kind\":\"bucket\",\"window_ms\":" + window + ",\"samples\":" + samples + ",\"quota\":" + quota + ",\"rows\":" + text(rows) + "}");
    }

    static final String[] USERS = {"alice", "bob", "carol d=x"};
    static final String[] CLIENTS = {"one", "two", "three"};

    static Optional<ClientQuotaEntity.ConfigEntity> user(String name) {
        if (name == null) return Optional.empty();
        return Optional.of(name.isEmpty() ? ClientQuotaManager.DEFAULT_USER_ENTITY
            : new ClientQuotaManager.UserEntity(org.apache.kafka.common.utils.Sanitizer.sanitize(name)));
    }

    static Optional<ClientQuotaEntity.ConfigEntity> client(String name) {
        if (name == null) return Optional.empty();
        return Optional.of(name.isEmpty() ? ClientQuotaManager.DEFAULT_USER_CLIENT_ID : new ClientQuotaManager.ClientIdEntity(name));
    }

    /** Rows: ["set", user, client, value or null] (null absent, "" default), ["record", t, user, client, value, throttle], ... */
    static void clients(int seed, int levels, boolean mutations) throws Exception {
        Random random = new Random(seed);
        Virtual time = new Virtual();
        Metrics metrics = new Metrics(new MetricConfig(), Collections.emptyList(), time);
        ClientQuotaManagerConfig config = new ClientQuotaManagerConfig(seed % 2 == 0 ? 11 : 3, 1 + seed % 2);
        ControllerMutationQuotaManager mutation = mutations ? new ControllerMutationQuotaManager(config, metrics, time, "", Optional.empty()) : null;
        ClientQuotaManager manager = mutations ? mutation : new ClientQuotaManager(config, metrics, QuotaType.PRODUCE, time, "");
        List<Object> rows = new ArrayList<>();
        long window = 1000L * (1 + seed % 2);
        for (int i = 0; i < 400; i++) {
            time.ms += step(random, window);
            String who = USERS[random.nextInt(USERS.length)], id = CLIENTS[random.nextInt(CLIENTS.length)];
            Session session = new Session(new KafkaPrincipal("User", who), InetAddress.getLoopbackAddress());
            switch (random.nextInt(i < 10 ? 2 : 20)) {
                case 0 -> {
                    int level = random.nextInt(levels);
                    String u = level == 0 ? null : random.nextInt(3) == 0 ? "" : who;
                    String c = level == 1 ? null : random.nextInt(3) == 0 ? "" : id;
                    boolean removed = random.nextInt(4) == 0;
                    double bound = mutations ? 1 + random.nextInt(9) : 500 + random.nextInt(5000);
                    manager.updateQuota(user(u), client(c), removed ? Optional.empty() : Optional.of(new Quota(bound, true)));
                    rows.add(Arrays.asList("set", u, c, removed ? null : (Object) bound, manager.quotaTypesEnabled()));
                }
                case 1, 2 -> {
                    double max = manager.maxValueInQuotaWindow(session, id);
                    rows.add(List.of("max", time.ms, who, id, max));
                }
                case 3 -> {
                    if (mutations) break;
                    double value = random.nextInt(1000);
                    manager.unrecordQuotaSensor(session, id, value, time.ms);
                    rows.add(List.of("unrecord", time.ms, who, id, value));
                }
                default -> {
                    double value = mutations ? random.nextInt(30) : random.nextInt(4000) * (random.nextInt(10) == 0 ? 20 : 1);
                    if (mutations) {
                        boolean strict = random.nextBoolean();
                        ControllerMutationQuota quota = strict ? mutation.newStrictQuotaFor(session, id) : mutation.newPermissiveQuotaFor(session, id);
                        boolean refused = false;
                        try {
                            quota.record(value);
                        } catch (org.apache.kafka.common.errors.ThrottlingQuotaExceededException e) {
                            refused = true;
                        }
                        int first = quota.throttleTime();
                        time.ms += 70;
                        rows.add(List.of(strict ? "strict" : "permissive", time.ms - 70, who, id, value, refused, first, quota.throttleTime()));
                    } else {
                        int throttle = manager.maybeRecordAndGetThrottleTimeMs(session, id, value, time.ms);
                        Map<String, String> tags = manager.getOrCreateQuotaSensors(session, id).metricTags();
                        rows.add(List.of("record", time.ms, who, id, value, throttle, tags.get("user"), tags.get("client-id")));
                    }
                }
            }
        }
        manager.shutdown();
        System.out.println("{\"kind\":\"" + (mutations ? "mutations" : "clients") + "\",\"window_ms\":" + window + ",\"samples\":" + (seed % 2 == 0 ? 11 : 3) + ",\"rows\":" + text(rows) + "}");
    }

    static void replication(int seed) {
        Random random = new Random(seed);
        Virtual time = new Virtual();
        Metrics metrics = new Metrics(new MetricConfig(), Collections.emptyList(), time);
        kafka.server.ReplicationQuotaManager manager = new kafka.server.ReplicationQuotaManager(
            new ReplicationQuotaManagerConfig(11, 1), metrics, QuotaType.LEADER_REPLICATION, time);
        List<Object> rows = new ArrayList<>();
        manager.updateQuota(new Quota(2000, true));
        for (int i = 0; i < 200; i++) {
            time.ms += step(random, 1000);
            long value = random.nextInt(3000);
            manager.record(value);
            if (random.nextInt(20) == 0) {
                long bound = 500 + random.nextInt(4000);
                manager.updateQuota(new Quota(bound, true));
                rows.add(List.of("set", time.ms, bound));
            }
            rows.add(List.of("record", time.ms, value, manager.isQuotaExceeded()));
        }
        System.out.println("{\"kind\":\"replication\",\"window_ms\":1000,\"samples\":11,\"rows\":" + text(rows) + "}");
    }

    public static void main(String[] args) throws Exception {
        stats(1, 1000, 11);
        stats(2, 1000, 3);
        stats(3, 30000, 2);
        stats(4, 700, 1);
        bucket(5, 1000, 11, 5);
        bucket(6, 2000, 3, 0.5);
        for (int seed = 10; seed < 14; seed++) clients(seed, 1 + seed % 3, false);
        clients(20, 3, false);
        clients(21, 3, false);
        clients(30, 1, true);
        clients(31, 3, true);
        replication(40);
        System.exit(0);
    }
}
