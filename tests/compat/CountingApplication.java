import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * One instance of an application of Kafka Streams that counts what it reads in every way that needs state: words
 * (`counts`), words by window (`windows`), a join of two streams (`joined`), a join with a global table (`named`), a
 * repartition into another number of partitions, and behind it a running sum in a store of a processor (`sums`).
 *
 * The arguments are settings, as `bootstrap.servers=127.0.0.1:9092`. Each state that it enters is a line; it ends with
 * SIGTERM.
 */
public final class CountingApplication {
    private static final Duration LONG = Duration.ofDays(1);

    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        for (String argument : arguments) {
            String[] pair = argument.split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        KafkaStreams streams = new KafkaStreams(topology().build(), settings);
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.setUncaughtExceptionHandler(error -> {
            System.out.println("failed " + error);
            error.printStackTrace(System.out);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(30));
            System.out.println("closed");
        }));
        streams.start();
    }

    private static StreamsBuilder topology() {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream("lines");
        KStream<String, String> words = lines.flatMapValues(line -> Arrays.asList(line.split(" ")));
        words.groupBy((key, word) -> word).count(Materialized.as("counts"))
            .toStream().mapValues(count -> Long.toString(count)).to("counts");
        words.groupBy((key, word) -> word).windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofSeconds(10), LONG))
            .count().toStream()
            .map((window, count) -> KeyValue.pair(window.key() + "@" + window.window().start(), Long.toString(count)))
            .to("windows");
        KStream<String, String> left = builder.stream("left");
        KStream<String, String> right = builder.stream("right");
        left.join(right, (one, other) -> one + "+" + other, JoinWindows.ofTimeDifferenceAndGrace(LONG, LONG)).to("joined");
        GlobalKTable<String, String> names = builder.globalTable("names");
        lines.join(names, (key, line) -> Integer.toString(Math.abs(key.hashCode()) % 5), (line, name) -> name).to("named");
        builder.addStateStore(Stores.keyValueStoreBuilder(
            Stores.inMemoryKeyValueStore("sums"), Serdes.String(), Serdes.Long()));
        left.selectKey((key, value) -> value.substring(value.length() - 1))
            .repartition(Repartitioned.<String, String>as("by-digit").withNumberOfPartitions(3))
            .processValues(Sum::new, Named.as("summing"), "sums").to("sums");
        return builder;
    }

    /** How many records there were of each key, each time. */
    private static final class Sum extends ContextualFixedKeyProcessor<String, String, String> {
        private KeyValueStore<String, Long> sums;

        @Override
        public void init(FixedKeyProcessorContext<String, String> context) {
            super.init(context);
            sums = context.getStateStore("sums");
        }

        @Override
        public void process(FixedKeyRecord<String, String> record) {
            Long before = sums.get(record.key());
            long now = before == null ? 1 : before + 1;
            sums.put(record.key(), now);
            context().forward(record.withValue(Long.toString(now)));
        }
    }
}
