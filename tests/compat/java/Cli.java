import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import org.apache.zookeeper.ZooKeeperMain;

/**
 * ZooKeeper's own command line, fed line by line from the standard input: `java Cli -server host:port`.
 *
 * Prints each line after "> " and then all that it led to: the events of a command come from another thread, so the next
 * line waits until those that the server has sent are told.
 */
final class Cli extends ZooKeeperMain {
    private Cli(String[] arguments) throws java.io.IOException, InterruptedException {
        super(arguments);
    }

    public static void main(String[] arguments) throws java.io.IOException, InterruptedException {
        System.setErr(System.out);
        Cli cli = new Cli(arguments);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        cli.flush();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println("> " + line);
            cli.executeLine(line);
            cli.flush();
        }
        cli.zk.close();
        System.exit(0);
    }

    private void flush() throws InterruptedException {
        while (!zk.getState().isConnected()) {
            Thread.sleep(20);
        }
        CountDownLatch told = new CountDownLatch(1);
        zk.sync("/", (code, path, context) -> told.countDown(), null);
        told.await();
    }
}
