import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooKeeper;

/** Sessions: how long, who owns them, how they move and end. */
final class SessionCases {
    private SessionCases() {}

    static void timeoutIsBounded(Env env) throws Exception {
        for (int[] pair : new int[][] {{2 * env.tickMs - 100, 2 * env.tickMs}, {10 * env.tickMs, 10 * env.tickMs}, {900000, 20 * env.tickMs}}) {
            Events events = new Events();
            ZooKeeper zk = env.keep(new ZooKeeper(env.hosts, pair[0], events));
            events.waitFor(KeeperState.SyncConnected);
            Env.equal(pair[1], zk.getSessionTimeout());
        }
    }

    static void closeTakesEphemeralsAlong(Env env) throws Exception {
        ZooKeeper zk = env.client(env.addresses[0], new Events());
        ZooKeeper other = env.client(env.addresses[1], new Events());
        String path = env.create(zk, env.root + "/e", CreateMode.EPHEMERAL);
        zk.close();
        other.sync("/");
        Env.equal(null, other.exists(path, false));
    }

    static void reattached(Env env) throws Exception {
        Events first = new Events();
        Events second = new Events();
        ZooKeeper zk = env.client(env.addresses[0], first);
        String path = env.create(zk, env.root + "/e", CreateMode.EPHEMERAL);
        ZooKeeper twin = env.keep(Env.proved(new ZooKeeper(env.addresses[1], Env.TIMEOUT_MS, second, zk.getSessionId(), zk.getSessionPasswd())));
        second.waitFor(KeeperState.SyncConnected);
        Env.equal(zk.getSessionId(), twin.getSessionId());
        Env.equal(twin.getSessionId(), twin.exists(path, false).getEphemeralOwner());
        twin.setData(path, Env.bytes("by the twin"), 0);
        // What becomes of the first connection differs: ours is closed at once, ZooKeeper's at its next write.
        zk.close();
        twin.close();
        Env.equal(null, env.client().exists(path, false));
    }

    static void wrongPassword(Env env) throws Exception {
        ZooKeeper zk = env.client();
        String path = env.create(zk, env.root + "/e", CreateMode.EPHEMERAL);
        Events events = new Events();
        env.keep(new ZooKeeper(env.hosts, Env.TIMEOUT_MS, events, zk.getSessionId(), new byte[16]));
        events.waitFor(KeeperState.Expired);
        Env.eventually("the owner keeps its session", () -> zk.getState().isConnected());
        Env.equal(zk.getSessionId(), zk.exists(path, false).getEphemeralOwner());
    }

    static void unknownSession(Env env) throws Exception {
        Events events = new Events();
        ZooKeeper zk = env.keep(new ZooKeeper(env.hosts, Env.TIMEOUT_MS, events, 0x123456789abcdefL, new byte[16]));
        events.waitFor(KeeperState.Expired);
        Env.fails(Code.SESSIONEXPIRED, () -> zk.exists("/", false));
    }

    static void endedByAnother(Env env) throws Exception {
        Events events = new Events();
        ZooKeeper zk = env.client(env.hosts, events);
        String path = env.create(zk, env.root + "/e", CreateMode.EPHEMERAL);
        env.endSession(zk);
        events.waitFor(KeeperState.Expired);
        Env.fails(Code.SESSIONEXPIRED, () -> zk.exists(path, false));
        ZooKeeper other = env.client();
        other.sync("/");
        Env.equal(null, other.exists(path, false));
    }

    static void fromServerToServer(Env env) throws Exception {
        Events events = new Events();
        ZooKeeper zk = env.client(env.addresses[0], events);
        String path = env.create(zk, env.root + "/e", CreateMode.EPHEMERAL);
        for (int i = 1; i <= 6; i++) {
            String next = env.addresses[i % env.addresses.length];
            zk.updateServerList(next);
            events.waitFor(KeeperState.Disconnected);
            events.waitFor(KeeperState.SyncConnected);
            Env.equal(next, Env.serverOf(zk));
            Env.equal(zk.getSessionId(), zk.exists(path, false).getEphemeralOwner());
            Env.equal(i, zk.setData(path, Env.bytes(next), i - 1).getVersion());
        }
    }

    /** A client that would do with a server that only reads gets one that also writes. */
    static void readOnlyWouldDo(Env env) throws Exception {
        Events events = new Events();
        ZooKeeper zk = env.keep(Env.proved(new ZooKeeper(env.hosts, Env.TIMEOUT_MS, events, true)));
        events.waitFor(KeeperState.SyncConnected);
        env.create(zk, env.root + "/z");
    }

    static void manyAtOnce(Env env) throws Exception {
        int count = 50;
        ZooKeeper[] clients = new ZooKeeper[count];
        Events[] events = new Events[count];
        for (int i = 0; i < count; i++) {
            events[i] = new Events();
            clients[i] = env.keep(Env.proved(new ZooKeeper(env.hosts, Env.TIMEOUT_MS, events[i])));
        }
        for (int i = 0; i < count; i++) {
            events[i].waitFor(KeeperState.SyncConnected);
            env.create(clients[i], env.root + "/e" + i, CreateMode.EPHEMERAL);
        }
        for (int i = 1; i < count; i++) {
            clients[i].close();
        }
        clients[0].sync("/");
        Env.equal(1, clients[0].getChildren(env.root, false).size());
    }
}
