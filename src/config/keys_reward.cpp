// Keys of [reward] and of one [[reward.source]].
#include "config/key.hpp"

namespace trireme::config {

void add_reward_keys(KeyList<Options>& keys) {
  keys.add(KEY(reward.clip_range),
           "Rewards are clipped to [low, high] after the group baseline; none: not clipped.")
      .ordered();
  keys.add(KEY(reward.normalize_enable),
           "Reward models subtract `mean` and divide by `std` of their config.json; so does a "
           "critic that has them.");
  keys.add(KEY(reward.overlong_buffer_len),
           "Answers that reach into the last tokens of this number before rollout.max_new_tokens "
           "lose reward, linearly.")
      .at_least(1);
  keys.add(KEY(reward.overlong_penalty_factor), "Reward lost at the end of that buffer.")
      .at_least(0);
  keys.add(KEY(reward.stop_properly_penalty_coef),
           "For answers cut off at the length limit: 0 ... 1 multiplies their reward, a negative "
           "number replaces it.")
      .at_most(1);
  keys.add(KEY(reward.retries),
           "Times that a request is asked again of a plugin that failed or was late; then "
           "reward.outage counts.")
      .range(0, 100)
      .expert();
  keys.add(KEY(reward.outage),
           "When a plugin leaves a request without an answer that often. stop: the run ends with "
           "exit code 69; wait: it goes on asking, every 30 s at "
           "last; skip: all samples of that prompt are left out of the iteration.");
}

namespace {

void add_rule_keys(KeyList<RewardSource>& keys) {
  keys.add(KEY(rule),
           "exact: the answer equals the label; number: the last number of the answer equals the "
           "label's, exactly (a fraction 3/4, a time 12:30, a version 1.5.2 is none); boxed: the "
           "content of the last \\boxed{...} equals the label or its box, as LaTeX without spaces "
           "and sizes of brackets, or as a number; math: the answer has the value of the label, as "
           "math-verify decides (\\frac12 = 0.5, 50\\% = 50, 5\\text{ cm} = 5, sets, intervals); "
           "math_verl: as verl's graders of MATH (\\boxed) and GSM8K (####) decide; regex: "
           "`pattern` matches the answer; none: only format and length count.");
  keys.add(KEY(pattern),
           "Regular expression (PCRE2). regex: what must match; for other rules its first group is "
           "the answer within the response.");
  keys.add(KEY(label_key), "Column of the data to compare with; empty: data.label_key.");
  keys.add(KEY(case_sensitive), "Whether letters' case counts.");
  keys.add(KEY(score_right), "Reward of a right answer.").range(-1e9, 1e9);
  keys.add(KEY(score_wrong), "Reward of a wrong one.").range(-1e9, 1e9);
  keys.add(KEY(format_pattern), "Regular expression that the whole response should match.");
  keys.add(KEY(format_weight), "Added to the reward when it does.").range(-1e9, 1e9);
  keys.add(KEY(length_target), "Response length in tokens from which brevity counts.")
      .at_least(0)
      .expert();
  keys.add(KEY(length_weight),
           "The reward falls by length_weight x max(0, length / length_target - 1).")
      .range(-1e9, 1e9)
      .expert();
}

void add_plugin_keys(KeyList<RewardSource>& keys) {
  keys.add(KEY(command),
           "plugin: the program and its arguments, started on each reward rank without a shell.");
  keys.add(KEY(processes),
           "plugin: how many of them on each reward rank; a request goes to the one with the "
           "fewest unanswered.")
      .range(1, 1024);
  keys.add(KEY(timeout),
           "plugin: longest time that a process may have requests and give no answer, from the "
           "first of them and from each answer on; also for the trial of --dry-run.")
      .above(0);
  keys.add(KEY(whole_groups),
           "plugin: a request has all answers to a prompt (`group`), and its answer a reward for "
           "each (`rewards`).");
}

void add_judge_keys(KeyList<RewardSource>& keys) {
  keys.add(KEY(prompt_template),
           "judge: what it is asked, a Jinja template over prompt, messages, response, label, "
           "extra and finish_reason; the judge's own chat template renders it as the user's turn.");
  keys.add(KEY(system), "judge: text of a system turn before it; empty: none.");
  keys.add(KEY(chat_template_kwargs),
           "judge: JSON object of variables for its chat template, such as "
           "'{\"enable_thinking\": false}'.");
  keys.add(KEY(score_pattern),
           "judge: regular expression (PCRE2) that finds the score in what it writes: its first "
           "group, or the whole match.");
  keys.add(KEY(score_match), "judge: which match counts.").expert();
  keys.add(KEY(score_words),
           "judge: numbers of words that the pattern finds, each \"WORD=NUMBER\" (letters' case "
           "does not count); what is not among them must be a number.")
      .expert();
  keys.add(KEY(score_range),
           "judge: lowest and highest score, which become rewards 0 and 1; a number outside is no "
           "score. none: the score is the reward.")
      .ordered();
  keys.add(KEY(no_score),
           "judge: reward of an answer for which no vote has a score; votes without one do not "
           "count beside others.")
      .range(-1e9, 1e9)
      .expert();
  keys.add(KEY(votes), "judge: how often it judges each answer.").range(1, 256);
  keys.add(KEY(vote_rule),
           "judge: reward of several votes: their mean, their median, or the most frequent one (on "
           "a tie the mean of those).");
  keys.add(KEY(temperature), "judge: of its sampling; 0: the likeliest token each time.")
      .range(0, 100);
  keys.add(KEY(max_new_tokens), "judge: longest text it writes, in tokens.").range(1, 1 << 24);
  keys.add(KEY(max_batch),
           "judge: sequences that it writes together, on each reward rank; there is a KV cache for "
           "so many of max_len tokens.")
      .range(1, 1 << 16);
}

KeyList<RewardSource> make_source_keys() {
  KeyList<RewardSource> keys;
  keys.add(KEY(kind),
           "rule: a comparison with the label; model: a reward model; plugin: a program of yours "
           "that reads and writes JSON lines; judge: a language model that is asked for a score.")
      .departs(
          "OpenRLHF: one reward model (reward.model_name_or_path) or one function or server "
          "(reward.remote_url); here a weighted "
          "list.");
  keys.add(
      KEY(name),
      "Name in the log, metrics and file names (letters, digits, -, _ and .); empty: the kind and "
      "its place in the list.");
  keys.add(KEY(weight), "The reward is the sum of weight x score over the sources.")
      .range(-1e9, 1e9);
  add_rule_keys(keys);
  keys.add(KEY(path),
           "model: folder of the reward model (...ForSequenceClassification with one label); "
           "judge: folder of a language model.");
  keys.add(KEY(max_len),
           "model: longest sequence it reads, longer ones lose their first tokens; 0: "
           "data.max_len. judge: longest prompt and text, an answer whose prompt is too long has "
           "no score; 0: twice data.max_len, or the judge's positions.")
      .at_least(0);
  keys.add(KEY(batch_tokens), "model: tokens of one forward pass; 0: rollout.micro_batch_tokens.")
      .at_least(0)
      .expert();
  add_plugin_keys(keys);
  add_judge_keys(keys);
  return keys;
}

}  // namespace

const KeyList<RewardSource>& source_keys() {
  static const KeyList<RewardSource> keys = make_source_keys();
  return keys;
}

}  // namespace trireme::config
