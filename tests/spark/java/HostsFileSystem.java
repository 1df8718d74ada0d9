import java.io.IOException;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;

/**
 * Local files that claim to lie on hosts, as HDFS says it: blocks of 1000 bytes, each on two of the hosts that the
 * file's own name lists, as in {@code data-host1+host2+host3}.
 */
public class HostsFileSystem extends RawLocalFileSystem {
    private static final long BLOCK = 1000;

    @Override
    public URI getUri() {
        return URI.create("hosts:///");
    }

    /** Without owners and rights, which are asked of files by an address that only {@code file:} has. */
    private FileStatus plain(FileStatus file) {
        return new FileStatus(file.getLen(), file.isDirectory(), 1, BLOCK, 0, file.getPath());
    }

    @Override
    public FileStatus getFileStatus(Path path) throws IOException {
        return plain(super.getFileStatus(path));
    }

    @Override
    public FileStatus[] listStatus(Path path) throws IOException {
        FileStatus[] found = super.listStatus(path);
        for (int at = 0; at < found.length; at++) {
            found[at] = plain(found[at]);
        }
        return found;
    }

    @Override
    public BlockLocation[] getFileBlockLocations(FileStatus file, long start, long length) throws IOException {
        String name = file.getPath().getName();
        String[] hosts = name.substring(name.indexOf('-') + 1).split("\\+");
        List<BlockLocation> found = new ArrayList<>();
        for (long at = 0; at < file.getLen(); at += BLOCK) {
            int first = (int) (at / BLOCK) % hosts.length;
            String[] two = {hosts[first], hosts[(first + 1) % hosts.length]};
            found.add(new BlockLocation(two, two, at, Math.min(BLOCK, file.getLen() - at)));
        }
        return found.toArray(new BlockLocation[0]);
    }
}
