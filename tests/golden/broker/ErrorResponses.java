import java.nio.ByteBuffer;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.common.requests.*;

/**
 * What `getErrorResponse` of Apache Kafka's request classes gives, for the requests in the file ARGS[0]: a line each of
 * API key, version and body in hex. Writes a line each of API key, version and response body to ARGS[1].
 */
public class ErrorResponses {
    private static final String MESSAGE = "not by this policy";

    public static void main(String[] args) throws Exception {
        StringBuilder out = new StringBuilder();
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String[] parts = line.split(" ", -1);
            ApiKeys key = ApiKeys.forId(Integer.parseInt(parts[0]));
            short version = Short.parseShort(parts[1]);
            byte[] bytes = HexFormat.of().parseHex(parts[2]);
            ByteBufferAccessor body = new ByteBufferAccessor(ByteBuffer.wrap(bytes));
            AbstractRequest request = AbstractRequest.parseRequest(key, version, body).request;
            AbstractResponse response = request.getErrorResponse(0, new PolicyViolationException(MESSAGE));
            ByteBuffer buffer = MessageUtil.toByteBufferAccessor(response.data(), version).buffer();
            String answer = HexFormat.of().formatHex(MessageUtil.byteBufferToArray(buffer));
            out.append(parts[0]).append(' ').append(parts[1]).append(' ').append(answer).append('\n');
        }
        Files.writeString(Path.of(args[1]), out);
    }
}
