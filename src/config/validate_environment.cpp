// Mistakes in the keys of an environment, and in the commands of programs.
#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>
#include <string_view>

#include "config/validate_losses.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/reward_sources.hpp"

namespace trireme::config {
namespace {

// "--api-key=...", "--password", or something that looks like a key by itself.
bool carries_a_secret(const std::string& argument) {
  static const std::set<std::string, std::less<>> names{"apikey",    "accesskey", "accesstoken",
                                                        "authtoken", "token",     "secret",
                                                        "secretkey", "password",  "passwd"};
  std::string name;
  for (const char c : argument.substr(0, argument.find('='))) {
    if (c != '-' && c != '_')
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  const bool option = argument.starts_with('-') || argument.find('=') != std::string::npos;
  const bool key =
      (argument.starts_with("sk-") || argument.starts_with("hf_")) && argument.size() >= 20;
  return key || (option && names.contains(name));
}

}  // namespace

std::vector<std::string> command_mistakes(const std::string& key, const Strings& command) {
  std::vector<std::string> mistakes;
  for (const std::string& argument : command) {
    if (!carries_a_secret(argument)) continue;
    mistakes.push_back(base::text(
        key,
        " has a key or password in its arguments (everybody on the node would see it, and the deck "
        "is copied into the run folder and every checkpoint): put it into an environment variable, "
        "which the program inherits"));
  }
  return mistakes;
}

namespace {

// They become names of metrics.
std::vector<std::string> tool_mistakes(const EnvironmentOptions& environment) {
  constexpr size_t most_tools = 64, longest = 64;
  std::vector<std::string> mistakes;
  const Strings& tools = environment.tools;
  if (!tools.empty() && environment.tool_calls == ToolCalls::none)
    mistakes.emplace_back(
        "environment.tools with environment.tool_calls = \"none\" (calls are not looked for): set "
        "environment.tool_calls, or remove it");
  if (tools.size() > most_tools)
    mistakes.push_back(base::text("environment.tools has ", tools.size(),
                                  " names (each is several "
                                  "metrics of every iteration): name up to ",
                                  most_tools));
  const auto fits = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-.:").find(c) != std::string_view::npos;
  };
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string& name = tools[i];
    const std::string at = base::text("environment.tools.", i, " = \"", name, "\" ");
    if (name.empty() || name.size() > longest || !std::ranges::all_of(name, fits))
      mistakes.push_back(base::text(at,
                                    "is not a possible name (it becomes part of a metric's "
                                    "name): use 1 to ",
                                    longest, " letters, digits, _, -, . and :"));
    if (name == environment_other_tools)
      mistakes.push_back(base::text(at,
                                    "(metrics have the calls of all other names under it): "
                                    "give the tool another name"));
    if (std::find(tools.begin(), tools.begin() + static_cast<std::ptrdiff_t>(i), name) !=
        tools.begin() + static_cast<std::ptrdiff_t>(i))
      mistakes.push_back(base::text(at, "is there twice: remove one"));
  }
  return mistakes;
}

}  // namespace

std::vector<std::string> environment_mistakes(const Options& options) {
  const EnvironmentOptions& environment = options.environment;
  std::vector<std::string> mistakes = command_mistakes("environment.command", environment.command);
  const auto refuse_if = [&](bool wrong, const auto&... parts) {
    if (wrong) mistakes.push_back(base::text(parts...));
  };
  if (!environment.wanted()) {
    refuse_if(environment != EnvironmentOptions{},
              "environment.command is missing (the other keys of [environment] are about the "
              "program that it names): name the program, or remove the section");
    return mistakes;
  }
  for (size_t i = 0; i < options.reward.source.size(); ++i) {
    refuse_if(source_name(options.reward.source[i], i) == environment_source, "reward.source.", i,
              ".name = \"", environment_source,
              "\" (metrics have the rewards of [environment] under that name): choose another one");
  }
  const bool by_pattern = environment.tool_calls == ToolCalls::regex;
  refuse_if(by_pattern && environment.tool_pattern.empty(),
            "environment.tool_pattern is missing (tool_calls = \"regex\" needs what a call looks "
            "like): give a pattern");
  refuse_if(!by_pattern && !environment.tool_pattern.empty(),
            "environment.tool_pattern with tool_calls = \"", to_string(environment.tool_calls),
            "\" (it would not be looked for): set tool_calls = \"regex\", or remove it");
  std::ranges::move(tool_mistakes(environment), std::back_inserter(mistakes));
  refuse_if(environment.max_tokens > options.data.max_len, "environment.max_tokens ",
            environment.max_tokens, " is more than data.max_len ", options.data.max_len,
            " (no sequence is longer than that): lower it, or raise data.max_len");
  refuse_if(environment.max_tokens > 0 && options.rollout.max_new_tokens >= environment.max_tokens,
            "rollout.max_new_tokens ", options.rollout.max_new_tokens,
            " leaves no token of environment.max_tokens ", environment.max_tokens,
            " for the prompt");
  refuse_if(environment.max_time.seconds > 0 && options.train.deterministic,
            "environment.max_time with train.deterministic (how long a program takes differs from "
            "run to run): remove one of the two");
  refuse_if(environment.broken_reward != 0 && environment.outage != PluginOutage::skip &&
                environment.max_time.seconds == 0,
            "environment.broken_reward = ", environment.broken_reward, " with outage = \"",
            to_string(environment.outage),
            "\" and no environment.max_time (no episode breaks while the run goes on): set outage "
            "= \"skip\", or remove it");
  refuse_if(options.rollout.ignore_eos,
            "rollout.ignore_eos with environment.command (a turn would end by its length alone, "
            "which ends the episode): remove one of the two");
  refuse_if(traits(options.algo.advantage.estimator).by_source, "algo.advantage.estimator = \"",
            to_string(options.algo.advantage.estimator),
            "\" with environment.command (it compares each [[reward.source]] on its own, and the "
            "rewards of turns are none): take group_norm");
  return mistakes;
}

}  // namespace trireme::config
