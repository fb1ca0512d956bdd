#include <algorithm>
#include <filesystem>

#include "trireme/config/importance_correction.hpp"
#include "trireme/config/models_of.hpp"
#include "trireme/config/options.hpp"
#include "trireme/config/reward_sources.hpp"

namespace trireme::config {

namespace {

bool has_source(const Options& options, RewardKind kind) {
  return std::any_of(options.reward.source.begin(), options.reward.source.end(),
                     [kind](const RewardSource& source) { return source.kind == kind; });
}

}  // namespace

bool Options::has_plugins() const { return has_source(*this, RewardKind::plugin); }
bool Options::has_judges() const { return has_source(*this, RewardKind::judge); }

bool needs_whole_groups(const Options& options) {
  return std::ranges::any_of(options.reward.source, &RewardSource::whole_groups);
}

std::string source_name(const RewardSource& source, size_t index) {
  if (!source.name.empty()) return source.name;
  return std::string(to_string(source.kind)) + std::to_string(index);
}

int64_t judge_max_len(const RewardSource& judge, const Options& options) {
  return judge.max_len > 0 ? judge.max_len : 2 * options.max_len();
}

std::vector<JudgeModel> judge_models(const Options& options) {
  const auto folder = [](const std::string& path) {
    return (std::filesystem::path(path) / "").lexically_normal();
  };
  std::vector<JudgeModel> models;
  for (size_t i = 0; i < options.reward.source.size(); ++i) {
    const RewardSource& source = options.reward.source[i];
    if (source.kind != RewardKind::judge) continue;
    auto model = std::find_if(models.begin(), models.end(), [&](const JudgeModel& one) {
      return folder(one.path) == folder(source.path);
    });
    if (model == models.end()) model = models.insert(model, JudgeModel{.path = source.path});
    model->sources.push_back(i);
    model->max_batch = std::max(model->max_batch, source.max_batch);
    model->max_len = std::max(model->max_len, judge_max_len(source, options));
  }
  return models;
}

std::string source_name_problem(std::string_view name) {
  constexpr size_t longest = 64;  // of a file's name there is room for 255 bytes
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  if (name.size() <= longest && std::all_of(name.begin(), name.end(), fits)) return {};
  return "is not a possible name (it becomes part of file names and metrics): use up to 64 "
         "letters, digits, -, _ and .";
}

bool needs_reference(const Options& options, Command command) {
  if (command == Command::dpo) return traits(options.algo.dpo.form()).reference;
  if (command == Command::sft) return options.algo.distill.coef > 0;
  return command == Command::ppo && options.needs_reference();
}

bool reference_is_actor(const Options& options, Command command) {
  const bool same =
      options.reference.path.empty() || same_folder(options.reference.path, options.model.path);
  return command != Command::sft && needs_reference(options, command) &&
         options.actor.lora.wanted() && same;
}

bool critic_shares_base(const Options& options) {
  return options.has_critic() && options.actor.lora.wanted() && options.critic.lora.wanted() &&
         same_folder(critic_base(options), options.model.path);
}

bool same_folder(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || std::filesystem::equivalent(a, b, error);
}

RowKind row_kind(const Options& options, Command command) {
  if (command == Command::rm) return RowKind::pair;
  if (command != Command::dpo) return RowKind::example;
  const bool labelled = traits(options.algo.dpo.form()).rows == DpoRows::labelled;
  return labelled ? RowKind::labelled : RowKind::pair;
}

ImportanceCorrection importance_correction(const AdvantageOptions& options) {
  ImportanceCorrection out;
  out.enabled = options.is_correction_enable;
  out.low = options.is_correction_threshold[0];
  out.high = options.is_correction_threshold[1];
  switch (options.is_correction_type) {
    case CorrectionType::tis: break;
    case CorrectionType::icepop: out.mode = CorrectionMode::mask; break;
    case CorrectionType::seq_mask_tis:
      out.level = CorrectionLevel::sequence;
      out.mode = CorrectionMode::mask;
      break;
    case CorrectionType::custom:
      out.level = options.is_correction_level;
      out.mode = options.is_correction_mode;
      out.gate = options.is_correction_gating;
      break;
  }
  return out;
}

}  // namespace trireme::config
