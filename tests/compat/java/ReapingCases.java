import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;

/** What the store removes by itself, at its own time: at the longest a minute later. */
final class ReapingCases {
    private static final int LIMIT_S = 135;

    private ReapingCases() {}

    static void containersAndOldZnodes(Env env) throws Exception {
        ZooKeeper zk = env.client();
        String emptied = env.create(zk, env.root + "/emptied", CreateMode.CONTAINER);
        String used = env.create(zk, env.root + "/used", CreateMode.CONTAINER);
        String unused = env.create(zk, env.root + "/unused", CreateMode.CONTAINER);
        env.create(zk, emptied + "/child");
        env.create(zk, used + "/child");
        zk.delete(emptied + "/child", -1);
        String old = ttl(zk, env.root + "/old", 500);
        String young = ttl(zk, env.root + "/young", 600000);
        String parent = ttl(zk, env.root + "/parent", 500);
        env.create(zk, parent + "/child");
        Env.eventually("reaped", LIMIT_S, () -> zk.exists(emptied, false) == null && zk.exists(old, false) == null);
        for (String path : new String[] {used, unused, young, parent}) {
            Env.check(zk.exists(path, false) != null, path + " stays");
        }
        zk.delete(parent + "/child", -1);
        zk.delete(used + "/child", -1);
        Env.eventually("reaped in the next round", LIMIT_S, () -> zk.exists(parent, false) == null && zk.exists(used, false) == null);
    }

    private static String ttl(ZooKeeper zk, String path, long ms) throws Exception {
        return zk.create(path, null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, null, ms);
    }
}
