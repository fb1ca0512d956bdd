// Who checks which golden case. A case's name begins with its kind ("gae.b0.g1.l1"), or with a
// model's name that its kind follows ("llama_tied.forward.c0"). Every check hands each output of
// its case to expect_matches (registry.hpp).
//
// The checks run at 1 to 4 ranks, those with a path on devices also there (site.hpp). Where ranks
// mean something (models, whitening, the pipeline, sums over data-parallel ranks, updates) the
// models are sharded over the ranks and the rows are dealt out to them; results are then put
// together on every rank. Pure functions are called on every rank with the whole case.
#pragma once

#include <string_view>

#include "support/golden.hpp"

namespace trireme::test {

struct Family {
  enum class Named : uint8_t { by_kind, by_model };
  enum class Paths : uint8_t { host, both };  // both: the program does it on devices, too

  std::string_view kind;
  void (*check)(const GoldenCase&);
  Paths paths = Paths::host;
  Named named = Named::by_kind;
};

// nullptr: no check for such cases.
const Family* family_of(const GoldenCase& c);

// head_cases.cpp
void check_head(const GoldenCase& c);
// experience_cases.cpp
void check_action_mask(const GoldenCase& c);
void check_penalty(const GoldenCase& c);
void check_baseline(const GoldenCase& c);
void check_token_rewards(const GoldenCase& c);
void check_gae(const GoldenCase& c);
void check_returns(const GoldenCase& c);
void check_whitening(const GoldenCase& c);
void check_pipeline(const GoldenCase& c);
// loss_cases.cpp
void check_policy(const GoldenCase& c);
void check_kl(const GoldenCase& c);
void check_kl_loss(const GoldenCase& c);
void check_entropy_loss(const GoldenCase& c);
void check_value_loss(const GoldenCase& c);
void check_data_parallel(const GoldenCase& c);
// estimator_cases.cpp
void check_combination(const GoldenCase& c);
void check_gdpo(const GoldenCase& c);
void check_reinforce_plus_plus(const GoldenCase& c);
void check_turns(const GoldenCase& c);
// episode_cases.cpp
void check_episode(const GoldenCase& c);
void check_batch_of_episodes(const GoldenCase& c);
void check_turn_token_rewards(const GoldenCase& c);
// distill_cases.cpp
void check_on_policy_distillation(const GoldenCase& c);
void check_distillation(const GoldenCase& c);
// preference_cases.cpp
void check_dpo(const GoldenCase& c);
void check_kto(const GoldenCase& c);
void check_orpo(const GoldenCase& c);
void check_simpo(const GoldenCase& c);
void check_reward_model_loss(const GoldenCase& c);
void check_sequence_log_probs(const GoldenCase& c);
void check_sft_loss(const GoldenCase& c);
void check_partition(const GoldenCase& c);
void check_balance(const GoldenCase& c);
// optimizer_cases.cpp
void check_kl_controller(const GoldenCase& c);
void check_moving_average(const GoldenCase& c);
void check_learning_rate(const GoldenCase& c);
void check_adamw(const GoldenCase& c);
// model_cases.cpp
void check_forward(const GoldenCase& c);
void check_heads(const GoldenCase& c);
// training_cases.cpp
void check_gradients(const GoldenCase& c);
void check_adamw_steps(const GoldenCase& c);
// lora_cases.cpp
void check_lora(const GoldenCase& c);
// generate_cases.cpp
void check_greedy(const GoldenCase& c);
// update_cases.cpp
void check_ppo_update(const GoldenCase& c);

}  // namespace trireme::test
