import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.api.transaction.CuratorOp;
import org.apache.curator.framework.api.transaction.CuratorTransactionResult;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.data.Stat;

/** Curator's own way of making requests. */
final class FrameworkCases {
    private FrameworkCases() {}

    static void builders(Env env) throws Exception {
        CuratorFramework curator = env.curator();
        String path = env.root + "/a/b/c";
        Stat stat = new Stat();
        Env.equal(path, curator.create().storingStatIn(stat).creatingParentsIfNeeded().forPath(path, Env.bytes("1")));
        Env.equal(curator.checkExists().forPath(path), stat);
        curator.create().orSetData().forPath(path, Env.bytes("2"));
        Env.equal("2", Env.text(curator.getData().forPath(path)));
        Env.equal(2, curator.setData().withVersion(1).forPath(path, Env.bytes("3")).getVersion());
        curator.create().compressed().forPath(env.root + "/packed", new byte[100000]);
        Env.check(curator.getData().forPath(env.root + "/packed").length < 1000, "compressed");
        Env.equal(100000, curator.getData().decompressed().forPath(env.root + "/packed").length);
        String guarded = curator.create().withProtection().withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath(env.root + "/g");
        Env.check(guarded.startsWith(env.root + "/_c_"), guarded);
        curator.delete().guaranteed().deletingChildrenIfNeeded().forPath(env.root + "/a");
        curator.delete().quietly().forPath(env.root + "/missing");
        Env.equal(null, curator.checkExists().forPath(env.root + "/a"));
    }

    static void idempotent(Env env) throws Exception {
        CuratorFramework curator = env.curator();
        String path = env.root + "/z";
        curator.create().idempotent().forPath(path, Env.bytes("1"));
        curator.create().idempotent().forPath(path, Env.bytes("1"));
        curator.setData().idempotent().withVersion(0).forPath(path, Env.bytes("2"));
        curator.setData().idempotent().withVersion(0).forPath(path, Env.bytes("2"));
        curator.delete().idempotent().forPath(path);
        curator.delete().idempotent().forPath(path);
    }

    static void parentContainers(Env env) throws Exception {
        CuratorFramework curator = env.curator();
        curator.createContainers(env.root + "/c/d");
        curator.create().creatingParentContainersIfNeeded().forPath(env.root + "/e/f/g");
        Env.equal(List.of("g"), curator.getChildren().forPath(env.root + "/e/f"));
        Env.equal(0L, curator.checkExists().forPath(env.root + "/e/f").getEphemeralOwner());
    }

    static void namespace(Env env) throws Exception {
        CuratorFramework curator = env.curator();
        CuratorFramework inside = curator.usingNamespace(env.root.substring(1));
        inside.create().forPath("/z", Env.bytes("x"));
        Env.equal("x", Env.text(curator.getData().forPath(env.root + "/z")));
    }

    static void transactions(Env env) throws Exception {
        CuratorFramework curator = env.curator();
        String path = env.root + "/z";
        List<CuratorTransactionResult> results = curator.transaction().forOperations(Arrays.asList(
                curator.transactionOp().create().forPath(path, Env.bytes("1")),
                curator.transactionOp().check().withVersion(0).forPath(path),
                curator.transactionOp().setData().withVersion(0).forPath(path, Env.bytes("2")),
                curator.transactionOp().create().withMode(CreateMode.EPHEMERAL).forPath(path + "/e"),
                curator.transactionOp().delete().forPath(path + "/e")));
        Env.equal(5, results.size());
        Env.equal(path, results.get(0).getResultPath());
        Env.equal(1, results.get(2).getResultStat().getVersion());
        CuratorOp fine = curator.transactionOp().setData().forPath(path, Env.bytes("3"));
        CuratorOp refused = curator.transactionOp().delete().withVersion(9).forPath(path);
        Env.fails(Code.BADVERSION, () -> curator.transaction().forOperations(fine, refused));
        Env.equal("2", Env.text(curator.getData().forPath(path)));
    }

    static void inBackground(Env env) throws Exception {
        CuratorFramework curator = env.curator();
        CountDownLatch done = new CountDownLatch(100);
        for (int i = 0; i < 100; i++) {
            curator.create().inBackground((client, event) -> {
                if (event.getResultCode() == 0) {
                    done.countDown();
                }
            }).forPath(env.root + "/n" + i);
        }
        Env.check(done.await(30, TimeUnit.SECONDS), "unanswered");
        CountDownLatch synced = new CountDownLatch(1);
        curator.sync().inBackground((client, event) -> synced.countDown()).forPath(env.root);
        Env.check(synced.await(30, TimeUnit.SECONDS), "no answer to sync");
        Env.equal(100, curator.getChildren().forPath(env.root).size());
    }

    static void watchers(Env env) throws Exception {
        CuratorFramework curator = env.curator();
        Events once = new Events();
        Events always = new Events();
        curator.create().forPath(env.root + "/z");
        curator.getData().usingWatcher(once).forPath(env.root + "/z");
        curator.watchers().add().withMode(AddWatchMode.PERSISTENT_RECURSIVE).usingWatcher(always).forPath(env.root);
        curator.setData().forPath(env.root + "/z");
        once.expect(EventType.NodeDataChanged, env.root + "/z");
        always.expect(EventType.NodeDataChanged, env.root + "/z");
        curator.watchers().remove(always).forPath(env.root);
        always.expect(EventType.PersistentWatchRemoved, env.root);
        curator.setData().forPath(env.root + "/z");
        curator.sync().forPath("/");
        always.expectNothing();
    }
}
