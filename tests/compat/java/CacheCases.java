import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.cache.NodeCache;
import org.apache.curator.framework.recipes.cache.PathChildrenCache;
import org.apache.curator.framework.recipes.cache.TreeCache;
import org.apache.curator.framework.recipes.watch.PersistentWatcher;
import org.apache.zookeeper.Watcher.Event.EventType;

/** Local copies that follow the store. */
@SuppressWarnings("deprecation")
final class CacheCases {
    private CacheCases() {}

    static void curatorCache(Env env) throws Exception {
        CuratorFramework writer = env.curator(env.addresses[0]);
        writer.create().forPath(env.root + "/before", Env.bytes("0"));
        BlockingQueue<String> told = new LinkedBlockingQueue<>();
        CuratorCache cache = env.keep(CuratorCache.build(env.curator(env.addresses[1]), env.root));
        CountDownLatch ready = new CountDownLatch(1);
        cache.listenable().addListener(CuratorCacheListener.builder()
                .forInitialized(ready::countDown)
                .forAll((type, old, data) -> told.add(type + " " + (data == null ? old : data).getPath().substring(env.root.length())))
                .afterInitialized()
                .build());
        CountDownLatch initialized = new CountDownLatch(1);
        cache.listenable().addListener(CuratorCacheListener.builder().forInitialized(initialized::countDown).build());
        cache.start();
        Env.check(initialized.await(30, TimeUnit.SECONDS), "initialized");
        Env.equal("0", Env.text(cache.get(env.root + "/before").get().getData()));
        writer.create().forPath(env.root + "/a", Env.bytes("1"));
        expect(told, "NODE_CREATED /a");
        writer.create().forPath(env.root + "/a/b", Env.bytes("2"));
        expect(told, "NODE_CREATED /a/b");
        writer.setData().forPath(env.root + "/a/b", Env.bytes("3"));
        expect(told, "NODE_CHANGED /a/b");
        Env.equal("3", Env.text(cache.get(env.root + "/a/b").get().getData()));
        writer.delete().deletingChildrenIfNeeded().forPath(env.root + "/a");
        expect(told, "NODE_DELETED /a/b");
        expect(told, "NODE_DELETED /a");
        Env.equal(2, cache.size());
    }

    private static void expect(BlockingQueue<String> told, String wanted) throws Exception {
        Env.equal(wanted, told.poll(20, TimeUnit.SECONDS));
    }

    static void treeCache(Env env) throws Exception {
        CuratorFramework writer = env.curator(env.addresses[0]);
        BlockingQueue<String> told = new LinkedBlockingQueue<>();
        TreeCache cache = new TreeCache(env.curator(env.addresses[1]), env.root);
        cache.getListenable().addListener((client, event) ->
                told.add(event.getType() + (event.getData() == null ? "" : " " + event.getData().getPath().substring(env.root.length()))));
        cache.start();
        expect(told, "NODE_ADDED ");
        expect(told, "INITIALIZED");
        writer.create().forPath(env.root + "/a", Env.bytes("1"));
        expect(told, "NODE_ADDED /a");
        writer.create().forPath(env.root + "/a/b", Env.bytes("2"));
        expect(told, "NODE_ADDED /a/b");
        writer.setData().forPath(env.root + "/a", Env.bytes("3"));
        expect(told, "NODE_UPDATED /a");
        writer.delete().forPath(env.root + "/a/b");
        expect(told, "NODE_REMOVED /a/b");
        Env.equal("3", Env.text(cache.getCurrentData(env.root + "/a").getData()));
        Env.equal(List.of("a"), List.copyOf(cache.getCurrentChildren(env.root).keySet()));
        cache.close();
    }

    static void pathChildrenCache(Env env) throws Exception {
        CuratorFramework writer = env.curator(env.addresses[0]);
        BlockingQueue<String> told = new LinkedBlockingQueue<>();
        PathChildrenCache cache = env.keep(new PathChildrenCache(env.curator(env.addresses[1]), env.root, true));
        cache.getListenable().addListener((client, event) -> {
            if (event.getData() != null) {
                told.add(event.getType() + " " + event.getData().getPath().substring(env.root.length()));
            }
        });
        cache.start(PathChildrenCache.StartMode.BUILD_INITIAL_CACHE);
        writer.create().forPath(env.root + "/a", Env.bytes("1"));
        expect(told, "CHILD_ADDED /a");
        writer.setData().forPath(env.root + "/a", Env.bytes("2"));
        expect(told, "CHILD_UPDATED /a");
        Env.equal("2", Env.text(cache.getCurrentData(env.root + "/a").getData()));
        writer.delete().forPath(env.root + "/a");
        expect(told, "CHILD_REMOVED /a");
    }

    static void nodeCache(Env env) throws Exception {
        CuratorFramework writer = env.curator(env.addresses[0]);
        String path = env.root + "/z";
        NodeCache cache = env.keep(new NodeCache(env.curator(env.addresses[1]), path));
        cache.start(true);
        Env.equal(null, cache.getCurrentData());
        writer.create().forPath(path, Env.bytes("1"));
        Env.eventually("there", () -> cache.getCurrentData() != null);
        writer.setData().forPath(path, Env.bytes("2"));
        Env.eventually("changed", () -> Env.text(cache.getCurrentData().getData()).equals("2"));
        writer.delete().forPath(path);
        Env.eventually("gone", () -> cache.getCurrentData() == null);
    }

    static void persistentWatcher(Env env) throws Exception {
        CuratorFramework curator = env.curator();
        Events events = new Events();
        CountDownLatch set = new CountDownLatch(1);
        PersistentWatcher watcher = env.keep(new PersistentWatcher(curator, env.root, true));
        watcher.getListenable().addListener(events);
        watcher.getResetListenable().addListener(set::countDown);
        watcher.start();
        Env.check(set.await(30, TimeUnit.SECONDS), "set");
        curator.create().forPath(env.root + "/a");
        events.expect(EventType.NodeCreated, env.root + "/a");
    }
}
