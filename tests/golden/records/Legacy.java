// Writes the lines of legacy.jsonl: batches of magic 0 and 1 as Apache Kafka 4.3.1 builds and decodes them, and what its
// cleaner's filter makes of those that keep the records with a key and an even offset. Of batches of kind "big" the
// values were then replaced by their lengths. Run: java -cp 'folder of Kafka's jars/*' Legacy.java
import java.nio.ByteBuffer;
import java.util.*;
import java.util.stream.*;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.BufferSupplier;

public class Legacy {
    static final TimestampType CREATE = TimestampType.CREATE_TIME;
    static final TimestampType APPEND = TimestampType.LOG_APPEND_TIME;

    static byte[] bytes(ByteBuffer from) {
        if (from == null) return null;
        byte[] to = new byte[from.remaining()];
        from.duplicate().get(to);
        return to;
    }

    static String base64(byte[] data) {
        return data == null ? "null" : '"' + Base64.getEncoder().encodeToString(data) + '"';
    }

    static String of(Record r) {
        return "[" + r.offset() + "," + r.timestamp() + "," + base64(bytes(r.key())) + "," + base64(bytes(r.value())) + "]";
    }

    static String of(MutableRecordBatch b) {
        b.ensureValid();
        String records = StreamSupport.stream(b.spliterator(), false).map(Legacy::of).collect(Collectors.joining(","));
        return "{\"magic\":" + b.magic() + ",\"base_offset\":" + b.baseOffset() + ",\"last_offset\":" + b.lastOffset()
            + ",\"size\":" + b.sizeInBytes() + ",\"max_timestamp\":" + b.maxTimestamp() + ",\"crc\":" + b.checksum()
            + ",\"codec\":\"" + b.compressionType().name + "\",\"timestamp_type\":\"" + b.timestampType()
            + "\",\"records\":[" + records + "]}";
    }

    static String of(MemoryRecords all) {
        return StreamSupport.stream(all.batches().spliterator(), false).map(Legacy::of)
            .collect(Collectors.joining(",", "[", "]"));
    }

    static MemoryRecords made(byte magic, Compression codec, TimestampType type, String kind) {
        ByteBuffer out = ByteBuffer.allocate(1 << 20);
        long offset = 100;
        for (int batch = 0; batch < 2; batch++) {
            MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 20), magic, codec, type, offset,
                type == APPEND ? 1700000009999L : -1L);
            for (int i = 0; i < (kind.equals("big") ? 40 : 3); i++) {
                boolean deletes = kind.equals("tombstones");
                byte[] key = i % 3 == 2 && !deletes ? null : ("key" + i % 5).getBytes();
                String text = kind.equals("big")
                    ? "value " + i + " of a batch, longer: " + "abcdefgh".repeat(250) : "v" + i;
                builder.appendWithOffset(offset, magic == 0 ? -1L : 1700000000000L + i * 7 % 4 * 1000 + batch, key,
                    deletes && i == 1 ? null : text.getBytes());
                offset += deletes ? 2 : 1;
            }
            out.put(builder.build().buffer());
        }
        return MemoryRecords.readableRecords(out.flip());
    }

    static MemoryRecords filtered(MemoryRecords all) {
        ByteBuffer to = ByteBuffer.allocate(1 << 21);
        all.filterTo(new MemoryRecords.RecordFilter(1800000000000L, 86400000L) {
            protected BatchRetentionResult checkBatchRetention(RecordBatch b) {
                return new BatchRetentionResult(BatchRetention.DELETE_EMPTY, false);
            }
            protected boolean shouldRetainRecord(RecordBatch b, Record r) {
                return r.hasKey() && r.offset() % 2 == 0;
            }
        }, to, BufferSupplier.NO_CACHING);
        return MemoryRecords.readableRecords(to.flip());
    }

    public static void main(String[] args) {
        for (byte magic : new byte[] {0, 1})
            for (String codec : List.of("none", "gzip", "snappy", "lz4"))
                for (TimestampType type : magic == 0 ? List.of(CREATE) : List.of(CREATE, APPEND))
                    for (String kind : List.of("small", "big", "tombstones")) {
                        if (kind.equals("big") && codec.equals("none")) continue;
                        Compression compression = Compression.of(CompressionType.forName(codec)).build();
                        MemoryRecords all = made(magic, compression, type, kind);
                        System.out.println("{\"magic\":" + magic + ",\"codec\":\"" + codec + "\",\"type\":\"" + type
                            + "\",\"kind\":\"" + kind + "\",\"bytes\":" + base64(bytes(all.buffer())) + ",\"batches\":"
                            + of(all) + ",\"filtered\":" + of(filtered(all)) + "}");
                    }
    }
}
