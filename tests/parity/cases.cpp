#include "torch/torch.hpp"

#include "parity/cases.hpp"

#include <algorithm>
#include <array>

namespace trireme::test {
namespace {

using enum Family::Named;
using enum Family::Paths;

constexpr std::array families{
    Family{"logprob", check_head, both},
    Family{"action_mask", check_action_mask},
    Family{"penalty", check_penalty},
    Family{"baseline", check_baseline},
    Family{"token_reward", check_token_rewards},
    Family{"gae", check_gae},
    Family{"returns", check_returns},
    Family{"whiten", check_whitening},
    Family{"pipeline", check_pipeline},
    Family{"policy", check_policy, both},
    Family{"kl", check_kl, both},
    Family{"kl_loss", check_kl_loss, both},
    Family{"entropy_loss", check_entropy_loss, both},
    Family{"value_loss", check_value_loss, both},
    Family{"dp", check_data_parallel, both},
    Family{"combos", check_combination},
    Family{"gdpo", check_gdpo},
    Family{"rpp", check_reinforce_plus_plus},
    Family{"episode", check_episode},
    Family{"turns", check_turns},
    Family{"opd", check_on_policy_distillation},
    Family{"kd", check_distillation},
    Family{"dpo", check_dpo, both},
    Family{"kto", check_kto, both},
    Family{"orpo", check_orpo, both},
    Family{"simpo", check_simpo, both},
    Family{"cpo", check_simpo, both},
    Family{"rm", check_reward_model_loss, both},
    Family{"dpo_logps", check_sequence_log_probs, both},
    Family{"sft", check_sft_loss, both},
    Family{"partition", check_partition},
    Family{"balance", check_balance},
    Family{"kl_controller", check_kl_controller},
    Family{"ema", check_moving_average},
    Family{"lr", check_learning_rate},
    Family{"adamw", check_adamw},
    Family{"lora", check_lora},
    Family{"greedy", check_greedy, both},
    Family{"ppo_update", check_ppo_update, both},
    Family{"forward", check_forward, both, by_model},
    Family{"heads", check_heads, both, by_model},
    Family{"grad", check_gradients, both, by_model},
    Family{"adamw", check_adamw_steps, both, by_model},
};

// "dp3" is of the kind "dp": a number at the end counts something.
std::string_view without_number(std::string_view word) {
  while (!word.empty() && word.back() >= '0' && word.back() <= '9') word.remove_suffix(1);
  return word;
}

}  // namespace

const Family* family_of(const GoldenCase& c) {
  const std::string_view name = c.name;
  const size_t first = name.find('.');
  const std::string_view kind = without_number(name.substr(0, first));
  const std::string_view rest = first == std::string_view::npos ? "" : name.substr(first + 1);
  const std::string_view of_model = without_number(rest.substr(0, rest.find('.')));
  const auto found = std::find_if(families.begin(), families.end(), [&](const Family& family) {
    return family.kind == (family.named == by_model ? of_model : kind);
  });
  return found == families.end() ? nullptr : &*found;
}

}  // namespace trireme::test
