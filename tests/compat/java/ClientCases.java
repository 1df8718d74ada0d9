import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.ClientInfo;
import org.apache.zookeeper.data.Stat;

/** Single requests of the plain client: every kind of znode, every read, the errors and the figures in a Stat. */
final class ClientCases {
    private ClientCases() {}

    static void createModes(Env env) throws Exception {
        ZooKeeper zk = env.client();
        for (CreateMode mode : CreateMode.values()) {
            Stat stat = new Stat();
            long ttl = mode.isTTL() ? 600000 : -1;
            String asked = env.root + "/" + mode.name();
            String made = zk.create(asked, Env.bytes(mode.name()), Ids.OPEN_ACL_UNSAFE, mode, stat, ttl);
            Env.check(mode.isSequential() ? made.matches(asked + "\\d{10}") : made.equals(asked), made);
            Env.equal(mode.isEphemeral() ? zk.getSessionId() : 0L, stat.getEphemeralOwner());
            Env.equal(mode.name().length(), stat.getDataLength());
            Env.equal(stat, zk.exists(made, false));
            Env.equal(mode.name(), Env.text(zk.getData(made, false, null)));
            if (mode.isEphemeral()) {
                Env.fails(Code.NOCHILDRENFOREPHEMERALS, () -> env.create(zk, made + "/child"));
            } else {
                env.create(zk, made + "/child");
            }
        }
        Env.equal(CreateMode.values().length, zk.getChildren(env.root, false).size());
    }

    static void sequenceNumbers(Env env) throws Exception {
        ZooKeeper zk = env.client();
        env.create(zk, env.root + "/plain");
        Env.equal(env.root + "/a0000000001", env.create(zk, env.root + "/a", CreateMode.PERSISTENT_SEQUENTIAL));
        zk.delete(env.root + "/plain", -1);
        Env.equal(env.root + "/0000000002", env.create(zk, env.root + "/", CreateMode.EPHEMERAL_SEQUENTIAL));
        Env.equal(env.root + "/b0000000003", env.create(zk, env.root + "/b", CreateMode.PERSISTENT_SEQUENTIAL));
    }

    static void statOfAChange(Env env) throws Exception {
        ZooKeeper zk = env.client();
        String path = env.create(zk, env.root + "/z");
        Stat first = zk.exists(path, false);
        Env.equal(first.getCzxid(), first.getMzxid());
        Env.equal(first.getCzxid(), first.getPzxid());
        Env.equal(first.getCtime(), first.getMtime());
        Stat set = zk.setData(path, Env.bytes("longer"), 0);
        Env.check(set.getMzxid() > first.getCzxid() && set.getCzxid() == first.getCzxid(), "zxids " + set);
        Env.equal("1 0 0 6 0", figures(set));
        env.create(zk, path + "/a");
        env.create(zk, path + "/b");
        zk.delete(path + "/a", 0);
        Stat parent = zk.exists(path, false);
        Env.equal("1 3 0 6 1", figures(parent));
        Env.check(parent.getPzxid() > parent.getMzxid(), "pzxid follows the children " + parent);
        Stat acl = zk.setACL(path, Ids.OPEN_ACL_UNSAFE, 0);
        Env.equal("1 3 1 6 1", figures(acl));
        Env.equal(parent.getMzxid(), acl.getMzxid());
    }

    private static String figures(Stat stat) {
        return stat.getVersion() + " " + stat.getCversion() + " " + stat.getAversion() + " " + stat.getDataLength()
                + " " + stat.getNumChildren();
    }

    static void errors(Env env) throws Exception {
        ZooKeeper zk = env.client();
        String path = env.create(zk, env.root + "/there");
        String missing = env.root + "/missing";
        env.create(zk, path + "/child");
        Env.fails(Code.NODEEXISTS, () -> env.create(zk, path));
        Env.fails(Code.NONODE, () -> env.create(zk, missing + "/below"));
        Env.fails(Code.NONODE, () -> zk.delete(missing, -1));
        Env.fails(Code.NONODE, () -> zk.setData(missing, null, -1));
        Env.fails(Code.NONODE, () -> zk.getData(missing, false, null));
        Env.fails(Code.NONODE, () -> zk.getChildren(missing, false));
        Env.fails(Code.NONODE, () -> zk.getACL(missing, null));
        Env.fails(Code.NONODE, () -> zk.getAllChildrenNumber(missing));
        Env.equal(null, zk.exists(missing, false));
        Env.fails(Code.BADVERSION, () -> zk.setData(path, null, 7));
        Env.fails(Code.BADVERSION, () -> zk.delete(path, 7));
        Env.fails(Code.BADVERSION, () -> zk.setACL(path, Ids.OPEN_ACL_UNSAFE, 7));
        Env.fails(Code.NOTEMPTY, () -> zk.delete(path, 0));
        Env.fails(Code.BADARGUMENTS, () -> zk.delete("/zookeeper", -1));
        Env.fails(Code.NODEEXISTS, () -> env.create(zk, "/"));
    }

    static void dataFromNothingToAMegabyte(Env env) throws Exception {
        ZooKeeper zk = env.client();
        String path = zk.create(env.root + "/data", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        Env.equal(null, zk.getData(path, false, null));
        zk.setData(path, new byte[0], -1);
        Env.equal(0, zk.getData(path, false, null).length);
        byte[] large = new byte[1000000];
        Arrays.fill(large, (byte) 7);
        zk.setData(path, large, -1);
        Stat stat = new Stat();
        Env.check(Arrays.equals(large, zk.getData(path, false, stat)), "another content");
        Env.equal(large.length, stat.getDataLength());
    }

    /** A request above the server's limit costs the connection, not the session. */
    static void tooLargeARequest(Env env) throws Exception {
        Events states = new Events();
        ZooKeeper zk = env.client(env.hosts, states);
        String path = env.create(zk, env.root + "/e", CreateMode.EPHEMERAL);
        Env.fails(Code.CONNECTIONLOSS, () -> zk.setData(path, new byte[1200000], -1));
        // The client says "connected" for a moment after the error: the events tell when the session goes on.
        states.waitFor(KeeperState.Disconnected);
        states.waitFor(KeeperState.SyncConnected);
        Env.equal(zk.getSessionId(), zk.exists(path, false).getEphemeralOwner());
    }

    static void namesInAnyScript(Env env) throws Exception {
        ZooKeeper zk = env.client();
        List<String> names = Arrays.asList("Zürich", "日本", "with blank", "a.b..c", "...");
        for (String name : names) {
            env.create(zk, env.root + "/" + name);
        }
        List<String> sorted = new ArrayList<>(zk.getChildren(env.root, false));
        Collections.sort(sorted);
        List<String> expected = new ArrayList<>(names);
        Collections.sort(expected);
        Env.equal(expected, sorted);
    }

    static void manyChildren(Env env) throws Exception {
        ZooKeeper zk = env.client();
        int count = 5000;
        CountDownLatch made = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            zk.create(env.root + "/n" + i, null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT,
                    (code, path, context, name) -> made.countDown(), null);
        }
        Env.check(made.await(60, TimeUnit.SECONDS), "creates unanswered");
        Stat stat = new Stat();
        Env.equal(count, zk.getChildren(env.root, false, stat).size());
        Env.equal(count, stat.getNumChildren());
        Env.equal(count, zk.getAllChildrenNumber(env.root));
    }

    /** Answers come in the order of the requests, whatever mixture of reads and writes was sent. */
    static void answersInOrder(Env env) throws Exception {
        ZooKeeper zk = env.client();
        String path = env.create(zk, env.root + "/z");
        int count = 1000;
        List<Integer> order = Collections.synchronizedList(new ArrayList<>());
        List<String> wrong = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch done = new CountDownLatch(2 * count);
        for (int i = 0; i < count; i++) {
            int number = i;
            zk.setData(path, Env.bytes("" + i), i, (code, p, context, stat) -> {
                order.add(2 * number);
                if (code != 0) {
                    wrong.add("set " + number + " " + Code.get(code));
                }
                done.countDown();
            }, null);
            zk.getData(path, false, (code, p, context, data, stat) -> {
                order.add(2 * number + 1);
                if (code != 0 || !Env.text(data).equals("" + number)) {
                    wrong.add("get " + number + " " + Code.get(code) + " " + Env.text(data));
                }
                done.countDown();
            }, null);
        }
        Env.check(done.await(60, TimeUnit.SECONDS), "unanswered");
        Env.equal(List.of(), wrong);
        for (int i = 0; i < 2 * count; i++) {
            Env.equal(i, order.get(i));
        }
    }

    static void ephemerals(Env env) throws Exception {
        ZooKeeper zk = env.client();
        ZooKeeper other = env.client();
        env.create(zk, env.root + "/a", CreateMode.EPHEMERAL);
        env.create(zk, env.root + "/ab", CreateMode.EPHEMERAL);
        env.create(zk, env.root + "/b", CreateMode.EPHEMERAL);
        env.create(zk, env.root + "/persistent");
        env.create(other, env.root + "/c", CreateMode.EPHEMERAL);
        Env.equal(List.of(env.root + "/a", env.root + "/ab", env.root + "/b"), sorted(zk.getEphemerals()));
        Env.equal(List.of(env.root + "/a", env.root + "/ab"), sorted(zk.getEphemerals(env.root + "/a")));
        Env.equal(List.of(), zk.getEphemerals("/elsewhere"));
        Env.equal(List.of(env.root + "/c"), other.getEphemerals("/"));
    }

    private static List<String> sorted(List<String> names) {
        List<String> copy = new ArrayList<>(names);
        Collections.sort(copy);
        return copy;
    }

    static void childrenBelow(Env env) throws Exception {
        ZooKeeper zk = env.client();
        env.create(zk, env.root + "/a");
        env.create(zk, env.root + "/a/b");
        env.create(zk, env.root + "/a/b/c");
        env.create(zk, env.root + "/ab");
        Env.equal(4, zk.getAllChildrenNumber(env.root));
        Env.equal(2, zk.getAllChildrenNumber(env.root + "/a"));
        Env.equal(0, zk.getAllChildrenNumber(env.root + "/ab"));
        Env.check(zk.getAllChildrenNumber("/") >= 6, "the root counts everything");
    }

    /** After a sync, any server shows what was acknowledged anywhere before. */
    static void syncShowsWritesOfOthers(Env env) throws Exception {
        List<ZooKeeper> clients = new ArrayList<>();
        for (String address : env.addresses) {
            clients.add(env.client(address, new Events()));
        }
        String path = env.create(clients.get(0), env.root + "/z");
        for (int i = 0; i < 200; i++) {
            ZooKeeper reader = clients.get((i + 1) % clients.size());
            clients.get(i % clients.size()).setData(path, Env.bytes("" + i), -1);
            reader.sync(path);
            Env.equal("" + i, Env.text(reader.getData(path, false, null)));
        }
    }

    static void syncOfAMissingZnode(Env env) throws Exception {
        env.client().sync(env.root + "/missing");
    }

    static void whoAmI(Env env) throws Exception {
        ZooKeeper zk = env.client();
        Env.equal(List.of("ip:127.0.0.1"), who(zk));
        zk.addAuthInfo("digest", Env.bytes("anna:secret"));
        Env.equal(List.of("digest:anna", "ip:127.0.0.1"), who(zk));
        zk.addAuthInfo("digest", Env.bytes("bob:secret"));
        Env.equal(List.of("digest:anna", "digest:bob", "ip:127.0.0.1"), who(zk));
    }

    private static List<String> who(ZooKeeper zk) throws Exception {
        List<String> identities = new ArrayList<>();
        for (ClientInfo info : zk.whoAmI()) {
            identities.add(info.getAuthScheme() + ":" + info.getUser());
        }
        return sorted(identities);
    }

    static void chroot(Env env) throws Exception {
        ZooKeeper zk = env.client();
        Events events = new Events();
        ZooKeeper inside = env.client(env.hosts + env.root, events);
        Env.equal("/a", env.create(inside, "/a"));
        Env.equal("/s0000000001", env.create(inside, "/s", CreateMode.EPHEMERAL_SEQUENTIAL));
        zk.sync("/");
        Env.check(zk.exists(env.root + "/a", false) != null, "made below the chroot");
        inside.exists("/a", events);
        zk.delete(env.root + "/a", -1);
        events.expect(org.apache.zookeeper.Watcher.Event.EventType.NodeDeleted, "/a");
        Env.equal(List.of("s0000000001"), inside.getChildren("/", false));
        // The Java client does not take the chroot off these.
        Env.equal(List.of(env.root + "/s0000000001"), inside.getEphemerals());
    }
}
