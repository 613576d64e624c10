import java.io.*; import java.net.*; import java.nio.*; import java.nio.file.*; import java.util.*; import java.util.function.*;
import org.apache.kafka.common.*; import org.apache.kafka.common.message.*; import org.apache.kafka.common.metrics.Metrics; import org.apache.kafka.common.network.*; import org.apache.kafka.common.protocol.*; import org.apache.kafka.common.requests.*; import org.apache.kafka.common.security.auth.*; import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.ClientMetricsManager; import org.apache.kafka.server.metrics.ClientTelemetryExporterPlugin;
/*
 * Sends requests of telemetry at given times to Apache Kafka's own ClientMetricsManager, and prints what it answers.
 * javac -cp "JARS/*" ClientMetricsVectors.java; java -cp "JARS/*:." ClientMetricsVectors OPERATIONS | grep ^=
 * Each line of OPERATIONS, in `client_metrics.txt.gz` followed by its answer:
 *   S name key=value...                                          a changed subscription; removed without keys
 *   D connection                                                 a connection has ended
 *   G time id connection client software version port            GetTelemetrySubscriptions
 *   P ... (as G) ok|bad terminating codec size                   PushTelemetry, with the last id that was received or not
 */
public class ClientMetricsVectors {
  static long now = 0;
  static class T implements Time { public long milliseconds(){return now;} public long nanoseconds(){return now*1000000L;} public void sleep(long m){} public void waitObject(Object o, Supplier<Boolean> s, long d){} public <X> X waitForFuture(java.util.concurrent.CompletableFuture<X> f,long d){return null;} }
  static RequestContext ctx(ApiKeys k, String[] f) throws Exception {
    return new RequestContext(new RequestHeader(k,(short)0,f[4],0), f[3], InetAddress.getByName("10.1.2.3"), Optional.of(Integer.parseInt(f[7])), KafkaPrincipal.ANONYMOUS, new ListenerName("PLAINTEXT"), SecurityProtocol.PLAINTEXT, new ClientInformation(f[5],f[6]), false);
  }
  public static void main(String[] a) throws Exception {
    ClientMetricsManager m = new ClientMetricsManager(new ClientTelemetryExporterPlugin(), 1000, new T(), new Metrics());
    Map<String,Integer> sub = new HashMap<>();
    for (String line : Files.readAllLines(Path.of(a[0]))) {
      String[] f = line.split("\t", -1);
      if (f[0].equals("S")) { Properties p = new Properties(); for (int i=2;i<f.length;i++) if (!f[i].isEmpty()) { int e=f[i].indexOf('='); p.put(f[i].substring(0,e), f[i].substring(e+1)); } m.updateSubscription(f[1], p); System.out.println("="+"ok"); }
      else if (f[0].equals("D")) { m.connectionDisconnectListener().onDisconnect(f[1]); System.out.println("="+"ok"); }
      else if (f[0].equals("G")) { now=Long.parseLong(f[1]); Uuid id=Uuid.fromString(f[2]);
        GetTelemetrySubscriptionsResponseData d = m.processGetTelemetrySubscriptionRequest(new GetTelemetrySubscriptionsRequest.Builder(new GetTelemetrySubscriptionsRequestData().setClientInstanceId(id), true).build((short)0), ctx(ApiKeys.GET_TELEMETRY_SUBSCRIPTIONS,f)).data();
        if (d.errorCode()==0) sub.put(f[2], d.subscriptionId());
        System.out.println("="+d.errorCode()+"\t"+d.subscriptionId()+"\t"+d.pushIntervalMs()+"\t"+String.join(",",d.requestedMetrics())+"\t"+d.acceptedCompressionTypes()+"\t"+d.telemetryMaxBytes()+"\t"+d.deltaTemporality()); }
      else { now=Long.parseLong(f[1]); Uuid id=Uuid.fromString(f[2]);
        int s = f[8].equals("bad") ? 12345 : sub.getOrDefault(f[2], 0);
        PushTelemetryResponseData d = m.processPushTelemetryRequest(new PushTelemetryRequest.Builder(new PushTelemetryRequestData().setClientInstanceId(id).setSubscriptionId(s).setTerminating(f[9].equals("1")).setCompressionType(Byte.parseByte(f[10])).setMetrics(ByteBuffer.allocate(Integer.parseInt(f[11]))), true).build((short)0), ctx(ApiKeys.PUSH_TELEMETRY,f)).data();
        System.out.println("="+d.errorCode()+"\t"+d.throttleTimeMs()); }
    }
    m.close(); System.exit(0);
  }
}
