import java.util.List;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.Watcher.WatcherType;
import org.apache.zookeeper.ZooKeeper;

/** Watches: once, for ever, for a whole tree; taken back; across a change of server. */
final class WatchCases {
    private WatchCases() {}

    static void onceEach(Env env) throws Exception {
        ZooKeeper zk = env.client();
        ZooKeeper other = env.client();
        String path = env.root + "/z";
        Events exist = new Events();
        Events data = new Events();
        Events children = new Events();
        Env.equal(null, zk.exists(path, exist));
        env.create(other, path);
        exist.expect(EventType.NodeCreated, path);
        zk.getData(path, data, null);
        zk.getChildren(path, children);
        other.setData(path, null, -1);
        other.setData(path, null, -1);
        data.expect(EventType.NodeDataChanged, path);
        env.create(other, path + "/child");
        children.expect(EventType.NodeChildrenChanged, path);
        other.delete(path + "/child", -1);
        zk.sync("/");
        zk.getData(path, data, null);
        zk.getChildren(path, children);
        zk.exists(path, exist);
        other.delete(path, -1);
        data.expect(EventType.NodeDeleted, path);
        children.expect(EventType.NodeDeleted, path);
        exist.expect(EventType.NodeDeleted, path);
        Env.flush(zk);
        data.expectNothing();
        children.expectNothing();
        exist.expectNothing();
    }

    static void failedReadsLeaveNone(Env env) throws Exception {
        ZooKeeper zk = env.client();
        Events events = new Events();
        String path = env.root + "/z";
        Env.fails(Code.NONODE, () -> zk.getData(path, events, null));
        Env.fails(Code.NONODE, () -> zk.getChildren(path, events));
        env.create(zk, path);
        zk.setData(path, null, -1);
        Env.flush(zk);
        events.expectNothing();
    }

    static void persistent(Env env) throws Exception {
        ZooKeeper zk = env.client();
        Events events = new Events();
        String path = env.root + "/z";
        zk.addWatch(path, events, AddWatchMode.PERSISTENT);
        for (int round = 0; round < 2; round++) {
            env.create(zk, path);
            zk.setData(path, null, -1);
            env.create(zk, path + "/child");
            zk.setData(path + "/child", null, -1);
            zk.delete(path + "/child", -1);
            zk.delete(path, -1);
            events.expect(EventType.NodeCreated, path);
            events.expect(EventType.NodeDataChanged, path);
            events.expect(EventType.NodeChildrenChanged, path);
            events.expect(EventType.NodeChildrenChanged, path);
            events.expect(EventType.NodeDeleted, path);
        }
        Env.flush(zk);
        events.expectNothing();
    }

    static void persistentRecursive(Env env) throws Exception {
        ZooKeeper zk = env.client();
        Events events = new Events();
        zk.addWatch(env.root, events, AddWatchMode.PERSISTENT_RECURSIVE);
        env.create(zk, env.root + "/a");
        env.create(zk, env.root + "/a/b");
        zk.setData(env.root + "/a/b", null, -1);
        zk.setData(env.root, null, -1);
        zk.delete(env.root + "/a/b", -1);
        zk.delete(env.root + "/a", -1);
        events.expect(EventType.NodeCreated, env.root + "/a");
        events.expect(EventType.NodeCreated, env.root + "/a/b");
        events.expect(EventType.NodeDataChanged, env.root + "/a/b");
        events.expect(EventType.NodeDataChanged, env.root);
        events.expect(EventType.NodeDeleted, env.root + "/a/b");
        events.expect(EventType.NodeDeleted, env.root + "/a");
        Env.flush(zk);
        events.expectNothing();
    }

    static void bothModesAndAOneShot(Env env) throws Exception {
        ZooKeeper zk = env.client();
        Events persistent = new Events();
        Events recursive = new Events();
        Events once = new Events();
        String path = env.create(zk, env.root + "/z");
        zk.addWatch(path, persistent, AddWatchMode.PERSISTENT);
        zk.addWatch(env.root, recursive, AddWatchMode.PERSISTENT_RECURSIVE);
        zk.getData(path, once, null);
        zk.setData(path, null, -1);
        for (Events events : List.of(persistent, recursive, once)) {
            events.expect(EventType.NodeDataChanged, path);
            Env.flush(zk);
            events.expectNothing();
        }
    }

    static void aMultiTellsOfEachPart(Env env) throws Exception {
        ZooKeeper zk = env.client();
        Events events = new Events();
        zk.addWatch(env.root, events, AddWatchMode.PERSISTENT_RECURSIVE);
        zk.transaction()
                .create(env.root + "/a", null, org.apache.zookeeper.ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT)
                .setData(env.root + "/a", null, -1)
                .delete(env.root + "/a", -1)
                .commit();
        events.expect(EventType.NodeCreated, env.root + "/a");
        events.expect(EventType.NodeDataChanged, env.root + "/a");
        events.expect(EventType.NodeDeleted, env.root + "/a");
    }

    static void eventsCarryTheirZxid(Env env) throws Exception {
        ZooKeeper zk = env.client();
        Events events = new Events();
        String path = env.create(zk, env.root + "/z");
        zk.addWatch(path, events, AddWatchMode.PERSISTENT);
        for (int i = 0; i < 3; i++) {
            long zxid = zk.setData(path, null, -1).getMzxid();
            WatchedEvent event = events.expect(EventType.NodeDataChanged, path);
            Env.equal(zxid, event.getZxid());
        }
    }

    static void defaultWatcher(Env env) throws Exception {
        Events events = new Events();
        ZooKeeper zk = env.client(env.hosts, events);
        String path = env.create(zk, env.root + "/z");
        zk.getData(path, true, null);
        zk.setData(path, null, -1);
        events.expect(EventType.NodeDataChanged, path);
        zk.addWatch(path, AddWatchMode.PERSISTENT);
        zk.delete(path, -1);
        events.expect(EventType.NodeDeleted, path);
    }

    static void takenBack(Env env) throws Exception {
        ZooKeeper zk = env.client();
        Events data = new Events();
        Events children = new Events();
        String path = env.create(zk, env.root + "/z");
        zk.getData(path, data, null);
        zk.getChildren(path, children);
        zk.removeWatches(path, data, WatcherType.Data, false);
        zk.removeWatches(path, children, WatcherType.Children, false);
        zk.setData(path, null, -1);
        env.create(zk, path + "/child");
        data.expect(EventType.DataWatchRemoved, path);
        children.expect(EventType.ChildWatchRemoved, path);
        Env.flush(zk);
        data.expectNothing();
        children.expectNothing();
        Env.fails(Code.NOWATCHER, () -> zk.removeWatches(path, data, WatcherType.Data, false));
        Env.fails(Code.NOWATCHER, () -> zk.removeAllWatches(path, WatcherType.Any, false));
    }

    static void persistentTakenBack(Env env) throws Exception {
        ZooKeeper zk = env.client();
        Events persistent = new Events();
        Events recursive = new Events();
        String path = env.create(zk, env.root + "/z");
        zk.addWatch(path, persistent, AddWatchMode.PERSISTENT);
        zk.addWatch(path, recursive, AddWatchMode.PERSISTENT_RECURSIVE);
        zk.removeWatches(path, persistent, WatcherType.Any, false);
        persistent.expect(EventType.PersistentWatchRemoved, path);
        zk.setData(path, null, -1);
        recursive.expect(EventType.NodeDataChanged, path);
        zk.removeAllWatches(path, WatcherType.Any, false);
        recursive.expect(EventType.PersistentWatchRemoved, path);
        zk.setData(path, null, -1);
        Env.flush(zk);
        persistent.expectNothing();
        recursive.expectNothing();
    }

    static void oneKindOutOfSeveralTakenBack(Env env) throws Exception {
        ZooKeeper zk = env.client();
        Events persistent = new Events();
        Events recursive = new Events();
        Events data = new Events();
        String path = env.create(zk, env.root + "/z");
        zk.addWatch(path, persistent, AddWatchMode.PERSISTENT);
        zk.addWatch(path, recursive, AddWatchMode.PERSISTENT_RECURSIVE);
        zk.getData(path, data, null);
        zk.removeWatches(path, recursive, WatcherType.PersistentRecursive, false);
        recursive.expect(EventType.PersistentWatchRemoved, path);
        zk.setData(path, null, -1);
        persistent.expect(EventType.NodeDataChanged, path);
        data.expect(EventType.NodeDataChanged, path);
        zk.removeWatches(path, persistent, WatcherType.Persistent, false);
        persistent.expect(EventType.PersistentWatchRemoved, path);
        Env.flush(zk);
        recursive.expectNothing();
    }

    /** All kinds of watches go along to another server. */
    static void goAlongToAnotherServer(Env env) throws Exception {
        Events states = new Events();
        ZooKeeper zk = env.client(env.addresses[0], states);
        ZooKeeper other = env.client(env.addresses[2], new Events());
        Events data = new Events();
        Events exist = new Events();
        Events children = new Events();
        Events persistent = new Events();
        Events recursive = new Events();
        String path = env.create(zk, env.root + "/z");
        zk.getData(path, data, null);
        zk.exists(path + "/later", exist);
        zk.getChildren(path, children);
        zk.addWatch(path, persistent, AddWatchMode.PERSISTENT);
        zk.addWatch(env.root, recursive, AddWatchMode.PERSISTENT_RECURSIVE);
        zk.updateServerList(env.addresses[1]);
        states.waitFor(KeeperState.Disconnected);
        states.waitFor(KeeperState.SyncConnected);
        Env.equal(env.addresses[1], Env.serverOf(zk));
        zk.sync("/");
        other.setData(path, null, -1);
        env.create(other, path + "/later");
        data.expect(EventType.NodeDataChanged, path);
        exist.expect(EventType.NodeCreated, path + "/later");
        children.expect(EventType.NodeChildrenChanged, path);
        persistent.expect(EventType.NodeDataChanged, path);
        persistent.expect(EventType.NodeChildrenChanged, path);
        recursive.expect(EventType.NodeDataChanged, path);
        recursive.expect(EventType.NodeCreated, path + "/later");
    }
}
