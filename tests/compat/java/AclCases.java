import java.util.Arrays;
import java.util.List;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooDefs.Perms;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.Id;
import org.apache.zookeeper.data.Stat;
import org.apache.zookeeper.server.auth.DigestAuthenticationProvider;

/** Who may do what: access lists and the identities of a session. */
final class AclCases {
    private AclCases() {}

    private static ACL digest(int permissions, String secret) throws Exception {
        return new ACL(permissions, new Id("digest", DigestAuthenticationProvider.generateDigest(secret)));
    }

    /** The client asks such a list whether it holds null, which List.of() does not bear. */
    private static List<ACL> lines(ACL... lines) {
        return Arrays.asList(lines);
    }

    static void creatorOnly(Env env) throws Exception {
        ZooKeeper anna = env.client();
        ZooKeeper bob = env.client();
        anna.addAuthInfo("digest", Env.bytes("anna:secret"));
        String path = anna.create(env.root + "/mine", Env.bytes("x"), Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
        bob.sync("/");
        Env.fails(Code.NOAUTH, () -> bob.getData(path, false, null));
        Env.fails(Code.NOAUTH, () -> bob.exists(path, false));
        Env.fails(Code.NOAUTH, () -> bob.getChildren(path, false));
        Env.fails(Code.NOAUTH, () -> bob.getAllChildrenNumber(path));
        Env.fails(Code.NOAUTH, () -> bob.setData(path, null, -1));
        Env.fails(Code.NOAUTH, () -> bob.getACL(path, null));
        Env.fails(Code.NOAUTH, () -> bob.setACL(path, Ids.OPEN_ACL_UNSAFE, -1));
        Env.fails(Code.NOAUTH, () -> env.create(bob, path + "/child"));
        bob.addAuthInfo("digest", Env.bytes("anna:wrong"));
        Env.fails(Code.NOAUTH, () -> bob.getData(path, false, null));
        bob.addAuthInfo("digest", Env.bytes("anna:secret"));
        Env.equal("x", Env.text(bob.getData(path, false, null)));
        Env.equal(List.of(digest(Perms.ALL, "anna:secret")), bob.getACL(path, null));
    }

    static void eachPermission(Env env) throws Exception {
        ZooKeeper zk = env.client();
        String read = one(zk, env, "read", Perms.READ);
        String write = one(zk, env, "write", Perms.WRITE);
        String create = one(zk, env, "create", Perms.CREATE | Perms.READ);
        String admin = one(zk, env, "admin", Perms.ADMIN);
        Env.equal("x", Env.text(zk.getData(read, false, null)));
        Env.fails(Code.NOAUTH, () -> zk.setData(read, null, -1));
        zk.setData(write, Env.bytes("y"), 0);
        Env.fails(Code.NOAUTH, () -> zk.getData(write, false, null));
        env.create(zk, create + "/child");
        Env.fails(Code.NOAUTH, () -> zk.delete(create + "/child", -1));
        Env.fails(Code.NOAUTH, () -> zk.setACL(create, Ids.OPEN_ACL_UNSAFE, -1));
        zk.setACL(admin, Ids.OPEN_ACL_UNSAFE, 0);
        Env.equal("x", Env.text(zk.getData(admin, false, null)));
        // To delete takes a permission on the parent alone.
        zk.delete(read, -1);
    }

    private static String one(ZooKeeper zk, Env env, String name, int permissions) throws Exception {
        return zk.create(env.root + "/" + name, Env.bytes("x"), lines(new ACL(permissions, Ids.ANYONE_ID_UNSAFE)),
                CreateMode.PERSISTENT);
    }

    static void multiIsRefusedAsAWhole(Env env) throws Exception {
        ZooKeeper zk = env.client();
        String read = one(zk, env, "read", Perms.READ);
        Env.fails(Code.NOAUTH, () -> zk.transaction()
                .create(env.root + "/new", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT)
                .setData(read, null, -1)
                .commit());
        Env.equal(null, zk.exists(env.root + "/new", false));
    }

    static void byAddress(Env env) throws Exception {
        ZooKeeper zk = env.client();
        String here = zk.create(env.root + "/here", null, lines(new ACL(Perms.ALL, new Id("ip", "127.0.0.0/8"))),
                CreateMode.PERSISTENT);
        String there = zk.create(env.root + "/there", null, lines(new ACL(Perms.ALL, new Id("ip", "10.0.0.0/8"))),
                CreateMode.PERSISTENT);
        zk.getData(here, false, null);
        Env.fails(Code.NOAUTH, () -> zk.getData(there, false, null));
    }

    static void digestsAreMasked(Env env) throws Exception {
        ZooKeeper zk = env.client();
        String path = zk.create(env.root + "/z", null,
                lines(digest(Perms.ALL, "bob:secret"), new ACL(Perms.READ, Ids.ANYONE_ID_UNSAFE)), CreateMode.PERSISTENT);
        List<ACL> seen = zk.getACL(path, null);
        Env.equal(new Id("digest", "bob:x"), seen.get(0).getId());
        zk.addAuthInfo("digest", Env.bytes("bob:secret"));
        Env.equal(digest(Perms.ALL, "bob:secret"), zk.getACL(path, null).get(0));
    }

    static void versions(Env env) throws Exception {
        ZooKeeper zk = env.client();
        Stat stat = new Stat();
        zk.getACL(env.root, stat);
        Env.equal(0, stat.getAversion());
        Env.equal(1, zk.setACL(env.root, Ids.OPEN_ACL_UNSAFE, 0).getAversion());
        Env.fails(Code.BADVERSION, () -> zk.setACL(env.root, Ids.OPEN_ACL_UNSAFE, 0));
        Env.equal(2, zk.setACL(env.root, Ids.OPEN_ACL_UNSAFE, -1).getAversion());
    }

    static void listsThatMakeNoSense(Env env) throws Exception {
        ZooKeeper zk = env.client();
        for (Id id : List.of(new Id("nonsense", "x"), new Id("world", "somebody"), new Id("ip", "not an address"),
                new Id("digest", "nocolon"), Ids.AUTH_IDS)) {
            Env.fails(Code.INVALIDACL, () -> zk.setACL(env.root, lines(new ACL(Perms.ALL, id)), -1));
        }
        Env.fails(Code.INVALIDACL, () -> zk.setACL(env.root, lines(), -1));
    }

    static void unknownScheme(Env env) throws Exception {
        Events events = new Events();
        ZooKeeper zk = env.client(env.hosts, events);
        zk.addAuthInfo("nonsense", Env.bytes("x"));
        events.waitFor(KeeperState.AuthFailed);
    }

    /** The client says who it is again wherever it connects. */
    static void identitiesGoAlong(Env env) throws Exception {
        Events events = new Events();
        ZooKeeper zk = env.client(env.addresses[0], events);
        zk.addAuthInfo("digest", Env.bytes("anna:secret"));
        String path = zk.create(env.root + "/mine", Env.bytes("x"), Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
        zk.updateServerList(env.addresses[1]);
        events.waitFor(KeeperState.Disconnected);
        events.waitFor(KeeperState.SyncConnected);
        Env.equal("x", Env.text(zk.getData(path, false, null)));
    }
}
