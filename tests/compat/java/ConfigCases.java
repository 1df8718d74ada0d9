import java.util.Properties;
import org.apache.curator.framework.CuratorFramework;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.admin.ZooKeeperAdmin;
import org.apache.zookeeper.data.Stat;

/** The ensemble's own configuration, read and changed. Needs super:secret as the superuser. */
final class ConfigCases {
    private ConfigCases() {}

    private static Properties parse(byte[] config) throws Exception {
        Properties properties = new Properties();
        properties.load(new java.io.StringReader(Env.text(config)));
        return properties;
    }

    private static ZooKeeperAdmin admin(Env env) throws Exception {
        Events events = new Events();
        ZooKeeperAdmin admin = env.keep(new ZooKeeperAdmin(env.addresses[0], Env.TIMEOUT_MS, events));
        events.waitFor(KeeperState.SyncConnected);
        return admin;
    }

    static void namesTheServers(Env env) throws Exception {
        Properties config = parse(env.client().getConfig(false, null));
        for (int i = 0; i < env.addresses.length; i++) {
            String server = config.getProperty("server." + (i + 1));
            Env.check(server != null && server.endsWith(env.addresses[i]), "server." + (i + 1) + "=" + server);
            Env.check(server.contains(":participant;"), server);
        }
        Env.check(config.getProperty("version") != null, "has a version");
    }

    static void curatorReadsIt(Env env) throws Exception {
        CuratorFramework curator = env.curator();
        Env.eventually("Curator knows all servers", () -> curator.getCurrentConfig().getAllMembers().size() == env.addresses.length);
    }

    static void isForTheSuperuser(Env env) throws Exception {
        ZooKeeper zk = env.client();
        Env.fails(Code.NOAUTH, () -> zk.setData(ZooDefs.CONFIG_NODE, null, -1));
        ZooKeeperAdmin nobody = admin(env);
        Env.fails(Code.NOAUTH, () -> nobody.reconfigure((String) null, "3", null, -1, null));
    }

    static void superuserMayAll(Env env) throws Exception {
        ZooKeeper zk = env.client();
        zk.addAuthInfo("digest", Env.bytes("anna:secret"));
        zk.create(env.root + "/mine", Env.bytes("x"), ZooDefs.Ids.CREATOR_ALL_ACL, org.apache.zookeeper.CreateMode.PERSISTENT);
        ZooKeeper above = env.client();
        above.addAuthInfo("digest", Env.bytes("super:secret"));
        above.sync("/");
        Env.equal("x", Env.text(above.getData(env.root + "/mine", false, null)));
    }

    /** A server leaves and comes back. */
    static void shrinksAndGrows(Env env) throws Exception {
        ZooKeeperAdmin admin = admin(env);
        admin.addAuthInfo("digest", Env.bytes("super:secret"));
        Stat stat = new Stat();
        String third = parse(admin.getConfig(false, stat)).getProperty("server.3");
        Env.fails(Code.BADVERSION, () -> admin.reconfigure((String) null, "3", null, 12345, null));
        Events events = new Events();
        admin.getConfig(events, null);
        Properties two = parse(admin.reconfigure((String) null, "3", null, -1, stat));
        Env.equal(null, two.getProperty("server.3"));
        events.expect(EventType.NodeDataChanged, ZooDefs.CONFIG_NODE);
        Env.eventually("three again", () -> {
            try {
                return parse(admin.reconfigure("server.3=" + third, null, null, -1, stat)).getProperty("server.3") != null;
            } catch (org.apache.zookeeper.KeeperException.NewConfigNoQuorum notYet) {
                return false;
            }
        });
        ZooKeeper zk = env.client(env.addresses[2], new Events());
        zk.sync("/");
        Env.equal(third, parse(zk.getConfig(false, null)).getProperty("server.3"));
    }
}
