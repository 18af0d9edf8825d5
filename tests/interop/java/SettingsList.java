import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Prints every key that RocketMQ takes from a properties file, {class: {key: default}}: a key is what a setter with one
 * argument is named after, its default what a new object holds.
 */
public class SettingsList {
    public static void main(String[] arguments) throws Exception {
        JSONObject all = new JSONObject();
        for (Class<?> kind : new Class<?>[] {BrokerConfig.class, MessageStoreConfig.class, NamesrvConfig.class, NettyServerConfig.class}) {
            all.put(kind.getSimpleName(), keysOf(kind));
        }
        System.out.println(all.toJSONString(JSONWriter.Feature.MapSortField, JSONWriter.Feature.PrettyFormat, JSONWriter.Feature.WriteMapNullValue));
    }

    private static Map<String, Object> keysOf(Class<?> kind) throws Exception {
        Object made = kind.getDeclaredConstructor().newInstance();
        Map<String, Object> found = new TreeMap<>();
        for (Method method : kind.getMethods()) {
            String name = method.getName();
            if (name.length() > 3 && name.startsWith("set") && method.getParameterCount() == 1) {
                String key = name.substring(3, 4).toLowerCase() + name.substring(4);
                found.put(key, defaultOf(kind, made, key, method.getParameterTypes()[0]));
            }
        }
        return found;
    }

    private static Object defaultOf(Class<?> kind, Object made, String key, Class<?> type) throws Exception {
        String end = key.substring(0, 1).toUpperCase() + key.substring(1);
        for (String prefix : new String[] {"get", "is"}) {
            try {
                Method getter = kind.getMethod(prefix + end);
                if (getter.getReturnType() == type) {
                    Object value = getter.invoke(made);
                    return value == null ? null : String.valueOf(value);
                }
            } catch (NoSuchMethodException missing) {
                continue;
            }
        }
        for (Class<?> at = kind; at != null; at = at.getSuperclass()) {
            for (Field field : at.getDeclaredFields()) {
                if (field.getName().equalsIgnoreCase(key) || field.getName().equalsIgnoreCase("is" + key)) {
                    field.setAccessible(true);
                    Object value = field.get(made);
                    return value == null ? null : String.valueOf(value);
                }
            }
        }
        return null;
    }
}
