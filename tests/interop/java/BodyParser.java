import com.alibaba.fastjson2.JSONObject;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Base64;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * Parses bodies as RocketMQ does. Each line of the file: a name, a class, the body in base64. Prints a line of JSON for each:
 * its name, and for each of the two parsers that RocketMQ has had (fastjson2 in 5.5.0, fastjson in those before) what the
 * object says when it is written again, or the error.
 */
public class BodyParser {
    public static void main(String[] arguments) throws Exception {
        for (String line : Files.readAllLines(Paths.get(arguments[0]))) {
            String[] parts = line.split(" ", 3);
            Class<?> kind = Class.forName(parts[1]);
            byte[] body = Base64.getDecoder().decode(parts[2]);
            JSONObject found = new JSONObject();
            found.put("name", parts[0]);
            try {
                found.put("fastjson2", RemotingSerializable.toJson(RemotingSerializable.decode(body, kind), false));
            } catch (Throwable error) {
                found.put("error", "fastjson2: " + error);
            }
            try {
                found.put("fastjson", com.alibaba.fastjson.JSON.toJSONString(com.alibaba.fastjson.JSON.parseObject(body, kind)));
            } catch (Throwable error) {
                found.put("error", "fastjson: " + error);
            }
            System.out.println(found.toJSONString());
        }
    }
}
