import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.common.message.Message;

/** What a message of Driver says about the time of its delivery: `delay_level`, `delay_s`, `delay_ms`, `deliver_ms`. */
final class TimerDriver {
    private TimerDriver() {
    }

    static Message settle(Message message, JSONObject m) {
        if (m.containsKey("delay_level")) {
            message.setDelayTimeLevel(m.getIntValue("delay_level"));
        }
        if (m.containsKey("delay_s")) {
            message.setDelayTimeSec(m.getLongValue("delay_s"));
        }
        if (m.containsKey("delay_ms")) {
            message.setDelayTimeMs(m.getLongValue("delay_ms"));
        }
        if (m.containsKey("deliver_ms")) {
            message.setDeliverTimeMs(m.getLongValue("deliver_ms"));
        }
        return message;
    }
}
