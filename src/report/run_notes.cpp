#include "trireme/report/run_notes.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "trireme/base/text.hpp"
#include "trireme/report/iteration_metrics.hpp"

namespace trireme::report {
namespace {

using Weight = RunNote::Weight;

constexpr size_t fewest_iterations = 8;   // before a trend is spoken of
constexpr size_t fewest_evaluations = 3;  // before one of the evaluation is
constexpr double trend = 3;               // in standard errors of a quarter's mean
constexpr double dead_groups = 0.6;       // share of groups without spread
constexpr double long_answers = 0.3;      // share of answers cut off
constexpr double large_steps = 0.2;       // share of clipped tokens
constexpr double far_away = 2;            // nats between policy and reference
constexpr double empty_slots = 0.5;       // occupancy
constexpr double overfit = 0.02;          // loss of the evaluation above its minimum, relative

double newest(const Series& series) { return series.mean_of(0.75, 1); }

std::string number(double value) { return base::fixed(value, std::abs(value) < 0.1 ? 3 : 2); }
std::string percent(double share) { return base::text(base::fixed(100 * share, 0), " %"); }

// From the first quarter to the last one; nullopt: too few values, or no more than noise.
std::optional<double> change_of(const Series& series) {
  if (series.bins().size() < fewest_iterations) return std::nullopt;
  const double by = newest(series) - series.mean_of(0, 0.25);
  const double least = trend * series.noise();
  return std::abs(by) > least ? std::optional(by) : std::nullopt;
}

// The evaluation's gain by its first and its last point, which are means over many answers.
std::optional<double> evaluation_change(const Series& series) {
  if (series.bins().size() < fewest_evaluations) return std::nullopt;
  return newest(series) - series.first();
}

void compare_with_evaluation(const RunHistory& run, std::vector<RunNote>& notes) {
  const auto reward = change_of(run.series("reward"));
  const auto evaluation = evaluation_change(run.series("eval_reward"));
  if (reward && *reward > 0 && evaluation && *evaluation < 0.2 * *reward) {
    notes.push_back(
        {Weight::warning,
         base::text("The reward rises (by ", number(*reward), "), the evaluation does not (",
                    *evaluation < 0 ? "" : "+", number(*evaluation), ")."),
         "Read the samples: reward hacking, or prompts learned by heart."});
  }
  const Series& loss = run.series("eval_loss");
  if (loss.bins().size() < fewest_evaluations) return;
  const auto best = std::ranges::min_element(loss.bins(), {}, &Bin::low);
  if (loss.last() > best->low + overfit * std::abs(best->low) &&
      best->last < loss.bins().back().first) {
    notes.push_back(
        {Weight::warning,
         base::text("The loss of the evaluation was lowest after iteration ", best->last, " (",
                    number(best->low), ") and is ", number(loss.last()), " now."),
         "Overfitting: fewer epochs, or keep the best checkpoint with "
         "ckpt.best_metric = \"eval_loss\"."});
  }
}

// One part of the reward grows while another one stays at nothing.
void compare_parts(const RunHistory& run, std::vector<RunNote>& notes) {
  std::string grows, stays;
  for (const std::string& name : run.reward_parts()) {
    const Series& series = run.series(name);
    if (series.bins().size() < fewest_iterations) continue;
    const auto change = change_of(series);
    if (change && *change > 0.2) grows = name;
    if (series.high() < 0.05 || (!change && newest(series) < 0.02)) stays = name;
  }
  if (grows.empty() || stays.empty()) return;
  const auto shown = [](const std::string& name) {
    return name.substr(std::string_view(reward_prefix).size());
  };
  notes.push_back(
      {Weight::warning,
       base::text(shown(grows), " rises (now ", number(newest(run.series(grows))), "), ",
                  shown(stays), " does not (", number(newest(run.series(stays))), ")."),
       "The policy learns the easy part of the reward alone: weigh it less, or start "
       "from examples of the other one."});
}

void look_at_rollouts(const RunHistory& run, std::vector<RunNote>& notes) {
  const Series& groups = run.series("groups_without_spread");
  if (!groups.empty() && newest(groups) > dead_groups) {
    notes.push_back({Weight::warning,
                     base::text(percent(newest(groups)),
                                " of the groups have no spread: all their answers have the same "
                                "reward, and nothing is learned from them."),
                     "Easier or harder prompts, more answers per prompt "
                     "(rollout.n_samples_per_prompt), or algo.dynamic_filtering_enable."});
  }
  const Series& truncated = run.series("truncated");
  if (!truncated.empty() && newest(truncated) > long_answers) {
    const auto change = change_of(run.series("response_length"));
    notes.push_back({change && *change > 0 ? Weight::warning : Weight::advice,
                     base::text(change && *change > 0 ? "Lengths run to the limit: " : "",
                                percent(newest(truncated)),
                                " of the answers are cut off at the limit of their length."),
                     "Raise rollout.max_new_tokens, or reward shorter answers "
                     "(reward.overlong_buffer_len)."});
  }
  const Series& occupancy = run.series("generation.occupancy");
  if (!occupancy.empty() && newest(occupancy) < empty_slots) {
    notes.push_back({Weight::advice,
                     base::text("Generation uses ", percent(newest(occupancy)),
                                " of its slots: the longest answers keep the others waiting."),
                     "rollout.over_sampling, train.partial_rollout_enable, or a smaller "
                     "generate.max_batch."});
  }
}

void look_at_learning(const RunHistory& run, std::vector<RunNote>& notes) {
  double skipped = 0;
  for (const Bin& bin : run.series("skipped_steps").bins()) skipped += bin.sum;
  if (skipped > 0) {
    notes.push_back({Weight::warning,
                     base::text(base::fixed(skipped, 0),
                                " optimizer steps were skipped: their gradient was not finite."),
                     "A lower learning rate; not_finite/ has what they had learned from."});
  }
  const Series& clip = run.series("clip_ratio");
  if (!clip.empty() && newest(clip) > large_steps) {
    notes.push_back({Weight::warning,
                     base::text(percent(newest(clip)), " of the tokens are clipped."),
                     "The steps are too large: a lower actor.adam.lr, or fewer train.max_epochs."});
  }
  const Series& kl = run.series("kl");
  if (run.record().command == "ppo" && !kl.empty() && newest(kl) > far_away) {
    notes.push_back(
        {Weight::warning,
         base::text("The policy is ", number(newest(kl)), " nats away from the reference."),
         "A larger algo.kl.init_coef, algo.kl.target, or a lower learning rate."});
  }
  const Series& critic = run.series("explained_variance");
  if (critic.bins().size() >= fewest_iterations && newest(critic) < 0) {
    notes.push_back({Weight::advice,
                     base::text("The critic explains nothing of the returns (explained variance ",
                                number(newest(critic)), ")."),
                     "A larger critic.adam.lr, critic.freezing_steps, or an estimator without a "
                     "critic."});
  }
  const Series& mismatch = run.series("mismatch_mean");
  const auto grown = change_of(mismatch);
  if (grown && newest(mismatch) > 1e-3 && newest(mismatch) > 10 * mismatch.mean_of(0, 0.25)) {
    notes.push_back({Weight::warning,
                     "Generator and trainer disagree more and more about the same tokens.",
                     "A growth of mismatch_mean is an error, not noise: report it."});
  }
  if (const Series& failed = run.series("failed_saves"); failed.last() > 0) {
    notes.push_back({Weight::warning,
                     base::text(base::fixed(failed.last(), 0), " checkpoints could not be saved."),
                     "Free some space: see the warnings below."});
  }
}

}  // namespace

std::vector<RunNote> notes_on(const RunHistory& run) {
  std::vector<RunNote> notes;
  compare_with_evaluation(run, notes);
  compare_parts(run, notes);
  look_at_rollouts(run, notes);
  look_at_learning(run, notes);
  std::ranges::stable_sort(notes, std::greater{}, &RunNote::weight);
  return notes;
}

}  // namespace trireme::report
