import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.recipes.nodes.PersistentTtlNode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.data.Stat;

/** Znodes that a recipe keeps alive. */
final class NodeCases {
    private NodeCases() {}

    static void persistentNodeComesBack(Env env) throws Exception {
        CuratorFramework curator = env.curator();
        CuratorFramework other = env.curator();
        String path = env.root + "/z";
        PersistentNode node = env.keep(new PersistentNode(curator, CreateMode.EPHEMERAL, false, path, Env.bytes("1")));
        node.start();
        Env.check(node.waitForInitialCreate(30, TimeUnit.SECONDS), "made");
        Env.eventually("seen", () -> other.checkExists().forPath(path) != null);
        long first = other.checkExists().forPath(path).getEphemeralOwner();
        other.delete().forPath(path);
        Env.eventually("made again", () -> other.checkExists().forPath(path) != null);
        node.setData(Env.bytes("2"));
        Env.eventually("set", () -> Env.text(other.getData().forPath(path)).equals("2"));
        env.endSession(curator.getZookeeperClient().getZooKeeper());
        Env.eventually("made by the next session", () -> {
            Stat stat = other.checkExists().forPath(path);
            return stat != null && stat.getEphemeralOwner() != first;
        });
        Env.equal("2", Env.text(other.getData().forPath(path)));
        node.close();
        Env.eventually("gone with it", () -> other.checkExists().forPath(path) == null);
    }

    static void persistentTtlNodeIsTouched(Env env) throws Exception {
        CuratorFramework curator = env.curator();
        String path = env.root + "/z";
        PersistentTtlNode node = env.keep(new PersistentTtlNode(curator, path, 1000, Env.bytes("1")));
        node.start();
        Env.check(node.waitForInitialCreate(30, TimeUnit.SECONDS), "made");
        String child = path + "/" + PersistentTtlNode.DEFAULT_CHILD_NODE_NAME;
        Env.eventually("the child is made", () -> curator.checkExists().forPath(child) != null);
        int version = curator.checkExists().forPath(child).getVersion();
        Env.eventually("touched", () -> curator.checkExists().forPath(child).getVersion() > version + 1);
        Env.equal("1", Env.text(curator.getData().forPath(path)));
    }

    static void groupMembers(Env env) throws Exception {
        GroupMember one = env.keep(new GroupMember(env.curator(), env.root, "one", Env.bytes("1")));
        GroupMember two = env.keep(new GroupMember(env.curator(), env.root, "two", Env.bytes("2")));
        one.start();
        two.start();
        Env.eventually("both", () -> one.getCurrentMembers().keySet().equals(Set.of("one", "two")));
        two.close();
        Env.eventually("one", () -> one.getCurrentMembers().keySet().equals(Set.of("one")));
    }
}
