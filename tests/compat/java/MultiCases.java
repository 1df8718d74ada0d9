import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.OpResult;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

/** Several operations in one request: all or nothing, and reads together. */
final class MultiCases {
    private MultiCases() {}

    private static Op create(String path, CreateMode mode) {
        return Op.create(path, Env.bytes("m"), Ids.OPEN_ACL_UNSAFE, mode);
    }

    static void allKinds(Env env) throws Exception {
        ZooKeeper zk = env.client();
        String a = env.root + "/a";
        List<OpResult> results = zk.multi(Arrays.asList(
                create(a, CreateMode.PERSISTENT),
                Op.check(a, 0),
                Op.setData(a, Env.bytes("two"), 0),
                create(a + "/s", CreateMode.PERSISTENT_SEQUENTIAL),
                create(a + "/c", CreateMode.CONTAINER),
                Op.create(a + "/t", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, 600000),
                create(a + "/gone", CreateMode.EPHEMERAL),
                Op.delete(a + "/gone", 0),
                Op.check(a, 1)));
        Env.equal(a, ((OpResult.CreateResult) results.get(0)).getPath());
        Env.check(results.get(1) instanceof OpResult.CheckResult, "check");
        Stat stat = ((OpResult.SetDataResult) results.get(2)).getStat();
        Env.equal(1, stat.getVersion());
        Env.equal(3, stat.getDataLength());
        Env.equal(a + "/s0000000000", ((OpResult.CreateResult) results.get(3)).getPath());
        Env.equal(a + "/c", ((OpResult.CreateResult) results.get(4)).getPath());
        Env.equal(a + "/t", ((OpResult.CreateResult) results.get(5)).getPath());
        Env.check(results.get(7) instanceof OpResult.DeleteResult, "delete");
        Env.equal(9, results.size());
        Env.equal(stat.getMzxid(), zk.exists(a + "/s0000000000", false).getCzxid());
        Env.equal(null, zk.exists(a + "/gone", false));
    }

    static void oneRefusedMeansNone(Env env) throws Exception {
        ZooKeeper zk = env.client();
        String a = env.root + "/a";
        try {
            zk.multi(Arrays.asList(
                    create(a, CreateMode.PERSISTENT),
                    Op.setData(env.root, null, -1),
                    Op.check(a, 5),
                    Op.delete(a, 0)));
            throw new AssertionError("went through");
        } catch (KeeperException.BadVersionException error) {
            List<Integer> codes = new ArrayList<>();
            for (OpResult result : error.getResults()) {
                codes.add(((OpResult.ErrorResult) result).getErr());
            }
            Env.equal(List.of(0, 0, Code.BADVERSION.intValue(), Code.RUNTIMEINCONSISTENCY.intValue()), codes);
        }
        Env.equal(null, zk.exists(a, false));
        Env.equal(0, zk.exists(env.root, false).getVersion());
    }

    static void errorsNameTheOperation(Env env) throws Exception {
        ZooKeeper zk = env.client();
        env.create(zk, env.root + "/there");
        Op fine = Op.check(env.root, -1);
        Env.fails(Code.NODEEXISTS, () -> zk.multi(List.of(fine, create(env.root + "/there", CreateMode.PERSISTENT))));
        Env.fails(Code.NONODE, () -> zk.multi(List.of(fine, Op.delete(env.root + "/missing", -1))));
        Env.fails(Code.NONODE, () -> zk.multi(List.of(fine, Op.check(env.root + "/missing", -1))));
        Env.fails(Code.NOTEMPTY, () -> zk.multi(List.of(fine, Op.delete(env.root, -1))));
    }

    static void empty(Env env) throws Exception {
        Env.equal(List.of(), env.client().multi(List.of()));
    }

    static void aThousandParts(Env env) throws Exception {
        ZooKeeper zk = env.client();
        List<Op> ops = new ArrayList<>();
        for (int i = 0; i < 1000; i++) {
            ops.add(create(env.root + "/n" + i, CreateMode.PERSISTENT));
        }
        Env.equal(1000, zk.multi(ops).size());
        Stat stat = zk.exists(env.root, false);
        Env.equal(1000, stat.getNumChildren());
        Env.equal(stat.getPzxid(), zk.exists(env.root + "/n0", false).getCzxid());
    }

    static void transactionBuilder(Env env) throws Exception {
        ZooKeeper zk = env.client();
        Env.equal(3, zk.transaction()
                .create(env.root + "/t", Env.bytes("1"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT)
                .setData(env.root + "/t", Env.bytes("2"), 0)
                .check(env.root + "/t", 1)
                .commit()
                .size());
    }

    static void readsTogether(Env env) throws Exception {
        ZooKeeper zk = env.client();
        env.create(zk, env.root + "/a");
        List<OpResult> results = zk.multi(List.of(
                Op.getData(env.root + "/a"), Op.getChildren(env.root), Op.getData(env.root + "/missing")));
        OpResult.GetDataResult data = (OpResult.GetDataResult) results.get(0);
        Env.equal("x", Env.text(data.getData()));
        Env.equal(zk.exists(env.root + "/a", false), data.getStat());
        Env.equal(List.of("a"), ((OpResult.GetChildrenResult) results.get(1)).getChildren());
        Env.equal(Code.NONODE.intValue(), ((OpResult.ErrorResult) results.get(2)).getErr());
    }
}
