import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.atomic.AtomicValue;
import org.apache.curator.framework.recipes.atomic.CachedAtomicLong;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.atomic.PromotedToLock;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.recipes.shared.SharedCountListener;
import org.apache.curator.framework.recipes.shared.SharedCountReader;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryNTimes;

/** Numbers that several clients change. */
final class CounterCases {
    private CounterCases() {}

    static void atomicLong(Env env) throws Exception {
        int contenders = 4;
        int rounds = 25;
        ExecutorService threads = Executors.newFixedThreadPool(contenders);
        List<Future<?>> running = new ArrayList<>();
        for (int i = 0; i < contenders; i++) {
            PromotedToLock lock = PromotedToLock.builder().lockPath(env.root + "/lock").timeout(30, TimeUnit.SECONDS).build();
            CuratorFramework curator = env.curator(env.addresses[i % env.addresses.length]);
            DistributedAtomicLong number = new DistributedAtomicLong(curator, env.root + "/n", new RetryNTimes(3, 1), lock);
            running.add(threads.submit(() -> {
                for (int round = 0; round < rounds; ) {
                    round += number.increment().succeeded() ? 1 : 0;
                }
                return null;
            }));
        }
        for (Future<?> each : running) {
            each.get(60, TimeUnit.SECONDS);
        }
        threads.shutdown();
        DistributedAtomicLong number = new DistributedAtomicLong(env.curator(), env.root + "/n", new RetryNTimes(3, 1));
        Env.equal((long) contenders * rounds, number.get().postValue());
        AtomicValue<Long> refused = number.compareAndSet(1L, 2L);
        Env.check(!refused.succeeded(), "compared with another value");
        Env.equal(100L, number.compareAndSet((long) contenders * rounds, 100L).postValue());
    }

    static void cachedLong(Env env) throws Exception {
        DistributedAtomicLong number = new DistributedAtomicLong(env.curator(), env.root + "/n", new RetryNTimes(3, 1));
        CachedAtomicLong cached = new CachedAtomicLong(number, 10);
        for (long i = 0; i < 25; i++) {
            Env.equal(i, cached.next().preValue());
        }
        Env.equal(30L, number.get().postValue());
    }

    static void sharedCount(Env env) throws Exception {
        SharedCount one = env.keep(new SharedCount(env.curator(env.addresses[0]), env.root + "/n", 10));
        SharedCount two = env.keep(new SharedCount(env.curator(env.addresses[1]), env.root + "/n", 10));
        AtomicInteger told = new AtomicInteger();
        two.addListener(new SharedCountListener() {
            @Override
            public void countHasChanged(SharedCountReader reader, int count) {
                told.set(count);
            }

            @Override
            public void stateChanged(CuratorFramework client, ConnectionState state) {}
        });
        one.start();
        two.start();
        Env.equal(10, two.getCount());
        one.setCount(11);
        Env.eventually("told", () -> told.get() == 11);
        Env.check(two.trySetCount(two.getVersionedValue(), 12), "set");
        Env.eventually("seen", () -> one.getCount() == 12);
    }
}
