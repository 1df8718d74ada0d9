import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;

/** Choosing one of several, and waiting for each other. */
final class LeaderCases {
    private LeaderCases() {}

    private static LeaderLatch leading(List<LeaderLatch> latches) throws Exception {
        List<LeaderLatch> found = new ArrayList<>();
        Env.eventually("one leader", () -> {
            found.clear();
            for (LeaderLatch latch : latches) {
                if (latch.hasLeadership()) {
                    found.add(latch);
                }
            }
            Env.check(found.size() < 2, "two leaders");
            return found.size() == 1;
        });
        return found.get(0);
    }

    static void latchHandsOver(Env env) throws Exception {
        List<LeaderLatch> latches = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            LeaderLatch latch = new LeaderLatch(env.curator(env.addresses[i]), env.root, "id" + i);
            latch.start();
            latches.add(latch);
        }
        Env.eventually("all take part", () -> latches.get(0).getParticipants().size() == 3);
        while (latches.size() > 1) {
            LeaderLatch leader = leading(latches);
            String id = leader.getId();
            Env.eventually("the others know", () -> latches.get(latches.size() - 1).getLeader().getId().equals(id));
            latches.remove(leader);
            leader.close();
        }
        leading(latches).close();
    }

    static void latchIsLostWithItsSession(Env env) throws Exception {
        CuratorFramework curator = env.curator();
        LeaderLatch first = new LeaderLatch(curator, env.root, "first");
        first.start();
        Env.check(first.await(30, TimeUnit.SECONDS), "leads");
        LeaderLatch second = new LeaderLatch(env.curator(), env.root, "second");
        second.start();
        Env.eventually("both take part", () -> first.getParticipants().size() == 2);
        env.endSession(curator.getZookeeperClient().getZooKeeper());
        Env.check(second.await(30, TimeUnit.SECONDS), "the second leads");
        Env.eventually("the first comes back behind", () -> second.getParticipants().size() == 2 && !first.hasLeadership());
        second.close();
        Env.check(first.await(30, TimeUnit.SECONDS), "leads again");
        first.close();
    }

    static void selectorTakesTurns(Env env) throws Exception {
        BlockingQueue<String> turns = new LinkedBlockingQueue<>();
        AtomicInteger inside = new AtomicInteger();
        List<LeaderSelector> selectors = new ArrayList<>();
        for (String id : List.of("a", "b", "c")) {
            LeaderSelector selector = new LeaderSelector(env.curator(), env.root, new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework client) {
                    turns.add(id + inside.incrementAndGet());
                    inside.decrementAndGet();
                }
            });
            selector.autoRequeue();
            selector.setId(id);
            selector.start();
            selectors.add(selector);
        }
        List<String> seen = new ArrayList<>();
        while (!seen.containsAll(List.of("a1", "b1", "c1"))) {
            String turn = turns.poll(30, TimeUnit.SECONDS);
            Env.check(turn != null && turn.endsWith("1"), "turn of " + turn);
            seen.add(turn);
        }
        for (LeaderSelector selector : selectors) {
            selector.close();
        }
    }

    static void barrierOpensForAll(Env env) throws Exception {
        DistributedBarrier barrier = new DistributedBarrier(env.curator(), env.root + "/barrier");
        barrier.setBarrier();
        CountDownLatch through = new CountDownLatch(3);
        ExecutorService threads = Executors.newCachedThreadPool();
        for (String address : env.addresses) {
            DistributedBarrier waiting = new DistributedBarrier(env.curator(address), env.root + "/barrier");
            Env.check(!waiting.waitOnBarrier(100, TimeUnit.MILLISECONDS), "closed");
            threads.submit(() -> {
                waiting.waitOnBarrier();
                through.countDown();
                return null;
            });
        }
        Env.equal(3L, through.getCount());
        barrier.removeBarrier();
        Env.check(through.await(30, TimeUnit.SECONDS), "opened");
        threads.shutdown();
    }

    static void doubleBarrier(Env env) throws Exception {
        int count = 4;
        AtomicInteger inside = new AtomicInteger();
        CyclicBarrier local = new CyclicBarrier(count);
        ExecutorService threads = Executors.newFixedThreadPool(count);
        List<Future<?>> running = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            CuratorFramework curator = env.curator(env.addresses[i % env.addresses.length]);
            DistributedDoubleBarrier barrier = new DistributedDoubleBarrier(curator, env.root + "/barrier", count);
            running.add(threads.submit(() -> {
                inside.incrementAndGet();
                Env.check(barrier.enter(30, TimeUnit.SECONDS), "not entered");
                Env.equal(count, inside.get());
                local.await();
                inside.decrementAndGet();
                Env.check(barrier.leave(30, TimeUnit.SECONDS), "not left");
                Env.equal(0, inside.get());
                return null;
            }));
        }
        for (Future<?> each : running) {
            each.get(60, TimeUnit.SECONDS);
        }
        threads.shutdown();
    }
}
