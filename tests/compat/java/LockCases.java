import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;

/** Curator's locks, held through different servers. */
final class LockCases {
    private static final int LONG_S = 30;
    private static final int SHORT_MS = 300;

    private LockCases() {}

    private static boolean free(InterProcessLock lock) throws Exception {
        if (!lock.acquire(SHORT_MS, TimeUnit.MILLISECONDS)) {
            return false;
        }
        lock.release();
        return true;
    }

    /** Six contenders on three servers count up without losing one. */
    static void mutexExcludes(Env env) throws Exception {
        int contenders = 6;
        int rounds = 10;
        AtomicInteger inside = new AtomicInteger();
        int[] count = {0};
        ExecutorService threads = Executors.newFixedThreadPool(contenders);
        List<Future<?>> running = new ArrayList<>();
        for (int i = 0; i < contenders; i++) {
            InterProcessMutex mutex = new InterProcessMutex(env.curator(env.addresses[i % env.addresses.length]), env.root + "/lock");
            running.add(threads.submit(() -> {
                for (int round = 0; round < rounds; round++) {
                    Env.check(mutex.acquire(LONG_S, TimeUnit.SECONDS), "not acquired");
                    Env.equal(1, inside.incrementAndGet());
                    count[0]++;
                    inside.decrementAndGet();
                    mutex.release();
                }
                return null;
            }));
        }
        for (Future<?> each : running) {
            each.get(60, TimeUnit.SECONDS);
        }
        threads.shutdown();
        Env.equal(contenders * rounds, count[0]);
    }

    static void mutexIsReentrant(Env env) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(env.curator(), env.root + "/lock");
        InterProcessMutex other = new InterProcessMutex(env.curator(), env.root + "/lock");
        mutex.acquire();
        mutex.acquire();
        mutex.release();
        Env.check(!free(other), "still held");
        mutex.release();
        Env.check(free(other), "released");
    }

    static void mutexOfADeadSessionIsFree(Env env) throws Exception {
        CuratorFramework holder = env.curator();
        new InterProcessMutex(holder, env.root + "/lock").acquire();
        InterProcessMutex other = new InterProcessMutex(env.curator(), env.root + "/lock");
        Env.check(!free(other), "held");
        env.endSession(holder.getZookeeperClient().getZooKeeper());
        Env.check(other.acquire(LONG_S, TimeUnit.SECONDS), "not free");
        other.release();
    }

    static void mutexCanBeRevoked(Env env) throws Exception {
        CuratorFramework holder = env.curator();
        CuratorFramework revoker = env.curator();
        InterProcessMutex mutex = new InterProcessMutex(holder, env.root + "/lock");
        CountDownLatch asked = new CountDownLatch(1);
        mutex.makeRevocable(lock -> asked.countDown());
        mutex.acquire();
        Revoker.attemptRevoke(revoker, mutex.getParticipantNodes().iterator().next());
        Env.check(asked.await(LONG_S, TimeUnit.SECONDS), "not asked");
        mutex.release();
    }

    static void readersTogetherWriterAlone(Env env) throws Exception {
        InterProcessReadWriteLock one = new InterProcessReadWriteLock(env.curator(env.addresses[0]), env.root + "/lock");
        InterProcessReadWriteLock two = new InterProcessReadWriteLock(env.curator(env.addresses[1]), env.root + "/lock");
        one.readLock().acquire();
        Env.check(free(two.readLock()), "a second reader");
        Env.check(!free(two.writeLock()), "no writer beside a reader");
        one.readLock().release();
        two.writeLock().acquire();
        Env.check(!free(one.readLock()), "no reader beside a writer");
        two.readLock().acquire();
        two.writeLock().release();
        Env.check(free(one.readLock()), "the writer went on as a reader");
        two.readLock().release();
        Env.check(free(one.writeLock()), "nobody left");
    }

    static void semaphoreCounts(Env env) throws Exception {
        InterProcessSemaphoreV2 one = new InterProcessSemaphoreV2(env.curator(env.addresses[0]), env.root + "/semaphore", 3);
        InterProcessSemaphoreV2 two = new InterProcessSemaphoreV2(env.curator(env.addresses[1]), env.root + "/semaphore", 3);
        Collection<Lease> both = one.acquire(2, LONG_S, TimeUnit.SECONDS);
        Lease third = two.acquire(LONG_S, TimeUnit.SECONDS);
        Env.check(third != null, "the third");
        Env.equal(3, two.getParticipantNodes().size());
        Env.equal(null, two.acquire(SHORT_MS, TimeUnit.MILLISECONDS));
        one.returnAll(both);
        Lease fourth = two.acquire(LONG_S, TimeUnit.SECONDS);
        Env.check(fourth != null, "after a return");
        two.returnLease(third);
        two.returnLease(fourth);
    }

    static void severalAsOne(Env env) throws Exception {
        CuratorFramework curator = env.curator();
        List<String> paths = List.of(env.root + "/a", env.root + "/b");
        InterProcessMultiLock both = new InterProcessMultiLock(curator, paths);
        InterProcessSemaphoreMutex one = new InterProcessSemaphoreMutex(env.curator(), env.root + "/c");
        InterProcessMutex b = new InterProcessMutex(env.curator(), env.root + "/b");
        one.acquire();
        b.acquire();
        Env.check(!both.acquire(SHORT_MS, TimeUnit.MILLISECONDS), "one of them is held");
        b.release();
        Env.check(both.acquire(LONG_S, TimeUnit.SECONDS), "both free");
        Env.check(!free(b), "held");
        both.release();
        one.release();
    }
}
