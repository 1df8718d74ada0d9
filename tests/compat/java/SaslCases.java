import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs.Perms;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.client.ZKClientConfig;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.ClientInfo;
import org.apache.zookeeper.data.Id;

/** SASL DIGEST-MD5. The JAAS sections Good and Wrong hold the user `jaas` with the right and with a wrong password. */
final class SaslCases {
    private SaslCases() {}

    private static ZooKeeper client(Env env, String section, Events events) throws Exception {
        ZKClientConfig config = new ZKClientConfig();
        config.setProperty(ZKClientConfig.ENABLE_CLIENT_SASL_KEY, "true");
        config.setProperty(ZKClientConfig.LOGIN_CONTEXT_NAME_KEY, section);
        return env.keep(new ZooKeeper(env.hosts, Env.TIMEOUT_MS, events, config));
    }

    static void digest(Env env) throws Exception {
        Events events = new Events();
        ZooKeeper zk = client(env, "Good", events);
        events.waitFor(KeeperState.SaslAuthenticated);
        List<String> identities = new ArrayList<>();
        for (ClientInfo info : zk.whoAmI()) {
            identities.add(info.getAuthScheme() + ":" + info.getUser());
        }
        Env.check(identities.contains("sasl:jaas"), "identities " + identities);
        String path = zk.create(env.root + "/mine", Env.bytes("x"), Arrays.asList(new ACL(Perms.ALL, new Id("sasl", "jaas"))), CreateMode.PERSISTENT);
        Env.equal("x", Env.text(zk.getData(path, false, null)));
        ZooKeeper other = env.client();
        other.sync("/");
        Env.fails(Code.NOAUTH, () -> other.getData(path, false, null));
    }

    static void wrongPassword(Env env) throws Exception {
        Events events = new Events();
        client(env, "Wrong", events);
        events.waitFor(KeeperState.AuthFailed);
    }
}
