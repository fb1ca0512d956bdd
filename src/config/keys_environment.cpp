// Keys of [environment].
#include "config/key.hpp"

namespace trireme::config {
namespace {

void add_program_keys(KeyList<Options>& keys) {
  keys.add(KEY(environment.command),
           "The program that answers the policy's turns, and its arguments, started on each "
           "generator rank without a shell. Empty: an answer is one turn.")
      .departs("OpenRLHF: train.agent_func_path, a Python file with a class.");
  keys.add(KEY(environment.processes),
           "How many of them on each generator rank; an episode stays with one, that with the "
           "fewest episodes when it begins.")
      .range(1, 1024)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(environment.timeout),
           "Longest time that a process may have messages and give no answer, from the first of "
           "them and from each answer on; also for the trial of --dry-run.")
      .above(0)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(environment.retries),
           "Times that a message is sent again after a process failed or was late, to a new "
           "process that gets the episode's turns from its reset on; then environment.outage "
           "counts.")
      .range(0, 100)
      .departs("Not in OpenRLHF.")
      .expert();
  keys.add(KEY(environment.outage),
           "When a message has no answer that often. stop: the run ends with exit code 69; wait: "
           "it goes on asking, every 30 s at last; skip: the episode ends with the turns that it "
           "has. With skip, an answer that makes no sense ends its episode, too; else it ends the "
           "run with exit code 65.")
      .departs("Not in OpenRLHF.");
}

void add_episode_keys(KeyList<Options>& keys) {
  keys.add(KEY(environment.max_turns), "Turns of the policy after which an episode ends.")
      .range(1, 4096)
      .departs("Not in OpenRLHF: an agent decides.");
  keys.add(KEY(environment.max_tokens),
           "Longest episode in tokens, with its prompt and observations; 0: data.max_len. "
           "rollout.max_new_tokens is that of one turn; a turn that is cut ends its episode.")
      .at_least(0)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(environment.max_time),
           "Longest time that an episode waits for its environment, all its turns together; then "
           "it ends as a broken one. 0: no limit.")
      .at_least(0)
      .departs("Not in OpenRLHF.")
      .expert();
  keys.add(KEY(environment.broken_reward),
           "Reward of the turn at which an episode broke (outage = \"skip\", max_time).")
      .range(-1e9, 1e9)
      .departs("Not in OpenRLHF.")
      .expert();
  keys.add(KEY(environment.rewards),
           "turns: the reward of a turn counts at its last token; last: the sum over the turns at "
           "the episode's last token of a turn. Estimators that compare answers take the sum in "
           "both cases.")
      .departs("OpenRLHF: the sum.");
  keys.add(KEY(environment.tool_calls),
           "How calls of tools are found in a turn, for the program: hermes: JSON in tool_call "
           "tags (Hermes, Qwen); llama3: the turn is JSON with name and parameters, perhaps after "
           "python_tag; regex: environment.tool_pattern; none: it gets the text alone.")
      .departs("Not in OpenRLHF.");
  keys.add(KEY(environment.tool_pattern),
           "Regular expression (PCRE2) of a call. Groups `name` and `arguments` are its parts; "
           "without `name` the call has the name \"\", without `arguments` the first group, or "
           "all of it, are the arguments: JSON, or else a text.")
      .departs("Not in OpenRLHF.")
      .expert();
  keys.add(KEY(environment.tools),
           "Names of tools whose calls metrics.jsonl counts each for itself; calls of all other "
           "names, which the policy may invent, are counted together.")
      .departs("Not in OpenRLHF.");
}

}  // namespace

void add_environment_keys(KeyList<Options>& keys) {
  add_program_keys(keys);
  add_episode_keys(keys);
}

}  // namespace trireme::config
