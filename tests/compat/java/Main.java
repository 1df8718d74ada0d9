import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * The official Java client and Curator's recipes against whatever ensemble is named on the command line.
 *
 * <pre>java Main host:port,host:port,host:port tickMs [group | group.case]...</pre>
 *
 * A group is a class; its cases are its package-private static methods that take an {@link Env}. Output, a line each:
 * {@code PASS group.case ms} or {@code FAIL group.case ms}, the latter followed by an indented stack. A case that needs
 * a server stopped or started asks for it with {@code DO stop host:port} and goes on when a line arrives on its
 * standard input. Exit status: 0 if all passed, 1 if not.
 */
final class Main {
    /** In this order: what everything else rests on first, what has to wait for the store's own clock last. */
    private static final Class<?>[] GROUPS = {
        ClientCases.class, MultiCases.class, WatchCases.class, AclCases.class, SessionCases.class,
        FrameworkCases.class, LockCases.class, LeaderCases.class, CacheCases.class, NodeCases.class,
        CounterCases.class, QueueCases.class, ServerCases.class, ConfigCases.class, SaslCases.class, ReapingCases.class,
    };
    private static final int CASE_LIMIT_S = 60;
    private static final int REAPING_LIMIT_S = 150;

    private Main() {}

    public static void main(String[] arguments) throws Exception {
        String hosts = arguments[0];
        int tickMs = Integer.parseInt(arguments[1]);
        List<String> wanted = Arrays.asList(arguments).subList(2, arguments.length);
        BufferedReader answers = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        int passed = 0;
        int failed = 0;
        for (Class<?> group : GROUPS) {
            for (Method body : cases(group)) {
                String name = nameOf(group) + "." + body.getName();
                if (!wanted.isEmpty() && !wanted.contains(nameOf(group)) && !wanted.contains(name)) {
                    continue;
                }
                if (run(name, body, new Env(hosts, tickMs, name, answers))) {
                    passed++;
                } else {
                    failed++;
                }
            }
        }
        System.out.printf("TOTAL %d passed, %d failed%n", passed, failed);
        System.exit(failed == 0 && passed > 0 ? 0 : 1);
    }

    private static List<Method> cases(Class<?> group) {
        List<Method> found = new ArrayList<>();
        for (Method method : group.getDeclaredMethods()) {
            boolean isCase = Modifier.isStatic(method.getModifiers()) && !Modifier.isPrivate(method.getModifiers());
            if (isCase && !method.isSynthetic() && Arrays.equals(method.getParameterTypes(), new Class<?>[] {Env.class})) {
                found.add(method);
            }
        }
        found.sort(Comparator.comparing(Method::getName));
        return found;
    }

    private static String nameOf(Class<?> group) {
        return group.getSimpleName().replace("Cases", "").toLowerCase();
    }

    private static boolean run(String name, Method body, Env env) {
        long start = System.nanoTime();
        Throwable problem = null;
        CompletableFuture<Void> done = new CompletableFuture<>();
        Thread thread = new Thread(() -> {
            try {
                env.prepare();
                body.invoke(null, env);
                done.complete(null);
            } catch (InvocationTargetException error) {
                done.completeExceptionally(error.getCause());
            } catch (Throwable error) {
                done.completeExceptionally(error);
            }
        }, name);
        thread.setDaemon(true);
        thread.start();
        int limit = body.getDeclaringClass() == ReapingCases.class ? REAPING_LIMIT_S : CASE_LIMIT_S;
        try {
            done.get(limit, TimeUnit.SECONDS);
        } catch (ExecutionException error) {
            problem = error.getCause();
        } catch (TimeoutException error) {
            problem = new AssertionError("still not done after " + limit + " s");
            problem.setStackTrace(thread.getStackTrace());
        } catch (InterruptedException error) {
            problem = error;
        }
        env.close();
        System.out.printf("%s %s %d ms%n", problem == null ? "PASS" : "FAIL", name, (System.nanoTime() - start) / 1000000);
        if (problem != null) {
            System.out.println("    " + problem.toString().replace("\n", "\n    "));
            StackTraceElement[] stack = problem.getStackTrace();
            for (int i = 0; i < Math.min(stack.length, 12); i++) {
                System.out.println("        at " + stack[i]);
            }
        }
        System.out.flush();
        return problem == null;
    }
}
