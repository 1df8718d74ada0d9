import java.io.BufferedReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.RetryOneTime;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;

/** What one case is given: clients that are closed behind it, a znode of its own, control over the servers. */
final class Env implements AutoCloseable {
    static final int TIMEOUT_MS = 6000;
    private static final int WAIT_S = 30;
    /** What clients prove to a store of `rk up`, if it is given. */
    private static final String TOKEN = System.getProperty("rk.token");

    final String hosts;
    final String[] addresses;
    final int tickMs;
    /** A znode that exists and that no other case uses. */
    final String root;

    private final BufferedReader answers;
    private final List<AutoCloseable> opened = new ArrayList<>();

    Env(String hosts, int tickMs, String name, BufferedReader answers) {
        this.hosts = hosts;
        this.addresses = hosts.split(",");
        this.tickMs = tickMs;
        this.root = "/compat/" + name;
        this.answers = answers;
    }

    void prepare() throws Exception {
        ZooKeeper zk = client();
        for (String path : new String[] {"/compat", root}) {
            try {
                zk.create(path, new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
            } catch (KeeperException.NodeExistsException there) {
                // From another case, or from an earlier run.
            }
        }
    }

    /** A connected client of all servers. */
    ZooKeeper client() throws Exception {
        return client(hosts, new Events());
    }

    /** A connected client of the servers and chroot in `connect`. */
    ZooKeeper client(String connect, Events events) throws Exception {
        ZooKeeper zk = keep(proved(new ZooKeeper(connect, TIMEOUT_MS, events)));
        events.waitFor(Watcher.Event.KeeperState.SyncConnected);
        return zk;
    }

    /** Let a client prove the token, if there is one, whenever it connects. */
    static ZooKeeper proved(ZooKeeper zk) {
        if (TOKEN != null) {
            zk.addAuthInfo("digest", bytes(TOKEN));
        }
        return zk;
    }

    /** A started and connected Curator client, which retries as users let it. */
    CuratorFramework curator() throws Exception {
        return curator(hosts);
    }

    CuratorFramework curator(String connect) throws Exception {
        CuratorFrameworkFactory.Builder builder = CuratorFrameworkFactory.builder().connectString(connect)
                .sessionTimeoutMs(TIMEOUT_MS).connectionTimeoutMs(5000).retryPolicy(new RetryNTimes(20, 200));
        if (TOKEN != null) {
            builder.authorization("digest", bytes(TOKEN));
        }
        CuratorFramework curator = keep(builder.build());
        curator.start();
        check(curator.blockUntilConnected(WAIT_S, TimeUnit.SECONDS), "not connected");
        return curator;
    }

    /** Have `closeable` closed when the case is over. */
    <T extends AutoCloseable> T keep(T closeable) {
        synchronized (opened) {
            opened.add(closeable);
        }
        return closeable;
    }

    @Override
    public void close() {
        for (int i = opened.size() - 1; i >= 0; i--) {
            try {
                opened.get(i).close();
            } catch (Exception error) {
                // Some cases leave behind what is closed, expired or never came up.
            }
        }
    }

    /** Have the server at `address` killed. */
    void stop(String address) throws Exception {
        ask("stop " + address);
    }

    /** Have the server at `address` started again; returns when it serves. */
    void start(String address) throws Exception {
        ask("start " + address);
    }

    private void ask(String what) throws Exception {
        System.out.println("DO " + what);
        System.out.flush();
        check(answers.readLine() != null, "nobody to " + what);
    }

    /** host:port of the server that `zk` is connected to. */
    static String serverOf(ZooKeeper zk) {
        String text = zk.toString();
        int at = text.indexOf("remoteserver:");
        String address = text.substring(at + "remoteserver:".length()).split(" ")[0];
        return address.substring(address.indexOf('/') + 1);
    }

    /** End the session of `zk` behind its back, as if it had expired: by its own id and password. */
    void endSession(ZooKeeper zk) throws Exception {
        Events events = new Events();
        ZooKeeper twin = proved(new ZooKeeper(hosts, TIMEOUT_MS, events, zk.getSessionId(), zk.getSessionPasswd()));
        events.waitFor(Watcher.Event.KeeperState.SyncConnected);
        twin.close();
    }

    /** Wait until all events that the server has sent before now have reached their watchers. */
    static void flush(ZooKeeper zk) throws Exception {
        CountDownLatch latch = new CountDownLatch(1);
        zk.sync("/", (code, path, context) -> latch.countDown(), null);
        check(latch.await(WAIT_S, TimeUnit.SECONDS), "no answer to sync");
    }

    String create(ZooKeeper zk, String path) throws Exception {
        return create(zk, path, CreateMode.PERSISTENT);
    }

    String create(ZooKeeper zk, String path, CreateMode mode) throws Exception {
        return zk.create(path, bytes("x"), ZooDefs.Ids.OPEN_ACL_UNSAFE, mode);
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] data) {
        return data == null ? null : new String(data, StandardCharsets.UTF_8);
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void equal(Object expected, Object actual) {
        if (!Objects.equals(expected, actual)) {
            throw new AssertionError("expected " + expected + ", got " + actual);
        }
    }

    static void eventually(String what, Callable<Boolean> condition) throws Exception {
        eventually(what, WAIT_S, condition);
    }

    static void eventually(String what, int seconds, Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (!condition.call()) {
            check(System.nanoTime() < end, "not within " + seconds + " s: " + what);
            Thread.sleep(20);
        }
    }

    interface Action {
        void run() throws Exception;
    }

    /** The code of the KeeperException that `action` must end in. */
    static void fails(KeeperException.Code code, Action action) throws Exception {
        try {
            action.run();
        } catch (KeeperException error) {
            equal(code, error.code());
            return;
        }
        throw new AssertionError("expected " + code + ", got no error");
    }
}
