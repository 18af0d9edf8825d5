import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.cli.Option;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** Prints every verb of mqadmin: {verb: {"does": …, "alias": …, "options": ["-n --namesrvAddr", …]}}, an option that must be given with a "!". */
public class VerbsList extends MQAdminStartup {
    public static void main(String[] arguments) {
        initCommand();
        JSONObject all = new JSONObject();
        for (SubCommand each : SUB_COMMANDS) {
            List<String> options = new ArrayList<>();
            for (Option option : each.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options())).getOptions()) {
                options.add("-" + option.getOpt() + " --" + option.getLongOpt() + (option.isRequired() ? " !" : ""));
            }
            JSONObject verb = new JSONObject();
            verb.put("does", each.commandDesc());
            verb.put("alias", each.commandAlias());
            verb.put("options", options);
            all.put(each.commandName(), verb);
        }
        System.out.println(all.toJSONString(JSONWriter.Feature.MapSortField, JSONWriter.Feature.PrettyFormat));
    }
}
