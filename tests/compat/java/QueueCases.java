import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.queue.DistributedDelayQueue;
import org.apache.curator.framework.recipes.queue.DistributedPriorityQueue;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.framework.state.ConnectionState;

/** Queues made of sequential znodes. */
final class QueueCases {
    private QueueCases() {}

    private static final QueueSerializer<String> TEXT = new QueueSerializer<>() {
        @Override
        public byte[] serialize(String item) {
            return Env.bytes(item);
        }

        @Override
        public String deserialize(byte[] bytes) {
            return Env.text(bytes);
        }
    };

    private static QueueConsumer<String> into(BlockingQueue<String> taken) {
        return new QueueConsumer<>() {
            @Override
            public void consumeMessage(String message) {
                taken.add(message);
            }

            @Override
            public void stateChanged(CuratorFramework client, ConnectionState state) {}
        };
    }

    private static List<String> take(BlockingQueue<String> taken, int count) throws Exception {
        List<String> items = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            items.add(taken.poll(30, TimeUnit.SECONDS));
        }
        return items;
    }

    static void simple(Env env) throws Exception {
        SimpleDistributedQueue in = new SimpleDistributedQueue(env.curator(env.addresses[0]), env.root);
        SimpleDistributedQueue out = new SimpleDistributedQueue(env.curator(env.addresses[1]), env.root);
        for (String item : List.of("a", "b", "c")) {
            in.offer(Env.bytes(item));
        }
        Env.equal("a", Env.text(out.take()));
        Env.equal("b", Env.text(out.poll(30, TimeUnit.SECONDS)));
        Env.equal("c", Env.text(out.take()));
        Env.equal(null, out.poll(100, TimeUnit.MILLISECONDS));
    }

    static void inOrder(Env env) throws Exception {
        BlockingQueue<String> taken = new LinkedBlockingQueue<>();
        DistributedQueue<String> in = env.keep(QueueBuilder.builder(env.curator(), (QueueConsumer<String>) null, TEXT, env.root + "/q").buildQueue());
        DistributedQueue<String> out = env.keep(QueueBuilder.builder(env.curator(), into(taken), TEXT, env.root + "/q").lockPath(env.root + "/l").buildQueue());
        in.start();
        List<String> items = new ArrayList<>();
        for (int i = 0; i < 50; i++) {
            items.add("item" + i);
            in.put("item" + i);
        }
        Env.check(in.flushPuts(30, TimeUnit.SECONDS), "put");
        out.start();
        Env.equal(items, take(taken, 50));
    }

    static void byPriority(Env env) throws Exception {
        BlockingQueue<String> taken = new LinkedBlockingQueue<>();
        DistributedPriorityQueue<String> in = env.keep(QueueBuilder.builder(env.curator(), (QueueConsumer<String>) null, TEXT, env.root + "/q").buildPriorityQueue(0));
        DistributedPriorityQueue<String> out = env.keep(QueueBuilder.builder(env.curator(), into(taken), TEXT, env.root + "/q").buildPriorityQueue(0));
        in.start();
        in.put("late", 30);
        in.put("first", -5);
        in.put("second", 7);
        Env.check(in.flushPuts(30, TimeUnit.SECONDS), "put");
        out.start();
        Env.equal(List.of("first", "second", "late"), take(taken, 3));
    }

    static void byTime(Env env) throws Exception {
        BlockingQueue<String> taken = new LinkedBlockingQueue<>();
        DistributedDelayQueue<String> queue = env.keep(QueueBuilder.builder(env.curator(), into(taken), TEXT, env.root + "/q").buildDelayQueue());
        queue.start();
        long now = System.currentTimeMillis();
        queue.put("later", now + 1500);
        queue.put("soon", now + 500);
        Env.equal(List.of("soon", "later"), take(taken, 2));
        Env.check(System.currentTimeMillis() >= now + 1500, "too early");
    }
}
