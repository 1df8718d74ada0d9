import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;

/** A watcher that keeps what it is told: changes of the connection apart from those of znodes. */
final class Events implements Watcher {
    private final BlockingQueue<WatchedEvent> states = new LinkedBlockingQueue<>();
    private final BlockingQueue<WatchedEvent> changes = new LinkedBlockingQueue<>();

    @Override
    public void process(WatchedEvent event) {
        (event.getType() == Event.EventType.None ? states : changes).add(event);
    }

    /** Take states until `wanted` comes. */
    void waitFor(Event.KeeperState wanted) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        while (true) {
            WatchedEvent event = states.poll(end - System.nanoTime(), TimeUnit.NANOSECONDS);
            Env.check(event != null, "never " + wanted);
            if (event.getState() == wanted) {
                return;
            }
        }
    }

    /** Take the next change; it must be this one. */
    WatchedEvent expect(Event.EventType type, String path) throws InterruptedException {
        WatchedEvent event = changes.poll(15, TimeUnit.SECONDS);
        Env.check(event != null, "expected " + type + " " + path + ", nothing came");
        Env.equal(type + " " + path, event.getType() + " " + event.getPath());
        return event;
    }

    /** Take changes until this one comes: for where it depends on the moment what else is told. */
    void skipTo(Event.EventType type, String path) throws InterruptedException {
        while (true) {
            WatchedEvent event = changes.poll(15, TimeUnit.SECONDS);
            Env.check(event != null, "expected " + type + " " + path + ", nothing came");
            if (event.getType() == type && event.getPath().equals(path)) {
                return;
            }
        }
    }

    /** There must be no change left. */
    void expectNothing() {
        Env.equal(null, changes.peek());
    }
}
