// Totals over iterations against the counts that the iterations were made from.
#include "trireme/report/generation_totals.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace trireme::report {
namespace {

// What the engines of an iteration counted.
struct Counted {
  double tokens, guessed, room, seconds, preemptions, shared;
};

// As the driver makes it of the counts.
IterationMetrics metrics_of(const Counted& one) {
  IterationMetrics metrics;
  metrics.generation = {{"tokens", one.tokens},
                        {"occupancy", (one.tokens - one.guessed) / one.room},
                        {"tokens_per_second", one.tokens / one.seconds},
                        {"preemptions", one.preemptions},
                        {"shared_tokens", one.shared}};
  if (one.guessed > 0) metrics.generation["accepted_tokens"] = one.guessed;
  return metrics;
}

TEST(GenerationTotals, AreThoseOfAllIterationsTogether) {
  GenerationTotals totals;
  for (const Counted& one :
       std::vector<Counted>{{100, 0, 200, 4, 1, 30}, {300, 0, 400, 1, 0, 0}, {50, 0, 400, 5, 2, 7}})
    totals.add(metrics_of(one));
  const auto json = nlohmann::json::parse(totals.to_json());
  EXPECT_EQ(json.at("tokens"), 450);
  EXPECT_NEAR(json.at("tokens_per_second").get<double>(), 450.0 / 10, 1e-9);
  EXPECT_NEAR(json.at("occupancy").get<double>(), 450.0 / 1000, 1e-12)
      << "no mean of the iterations' shares";
  EXPECT_EQ(json.at("preemptions"), 3);
  EXPECT_EQ(json.at("shared_tokens"), 37);
  EXPECT_EQ(totals.describe(),
            "generation: 450 tokens, 45 a second while the engines worked, occupancy 45 % (tokens "
            "per slot and step), 3 preemptions, "
            "37 prompt tokens shared");
}

// A guess takes no slot of its own: half of the first iteration's tokens were guessed.
TEST(GenerationTotals, GuessedTokensTakeNoRoom) {
  GenerationTotals totals;
  for (const Counted& one : std::vector<Counted>{{100, 50, 100, 1, 0, 0}, {100, 0, 100, 1, 0, 0}})
    totals.add(metrics_of(one));
  const auto json = nlohmann::json::parse(totals.to_json());
  EXPECT_NEAR(json.at("occupancy").get<double>(), 150.0 / 200, 1e-12);
  EXPECT_EQ(json.at("tokens"), 200);
  EXPECT_NE(totals.describe().find("occupancy 75 %"), std::string::npos) << totals.describe();
}

TEST(GenerationTotals, WhatIsBegunAgainIsSaid) {
  GenerationTotals totals;
  IterationMetrics with = metrics_of({100, 0, 100, 1, 0, 0});
  with.generation["dropped_tokens"] = 30;
  totals.add(with);
  totals.add(metrics_of({100, 0, 100, 1, 0, 0}));
  EXPECT_EQ(nlohmann::json::parse(totals.to_json()).at("dropped_tokens"), 30);
  EXPECT_NE(totals.describe().find(", 30 tokens of answers that were begun again"),
            std::string::npos)
      << totals.describe();
}

TEST(GenerationTotals, NothingWrittenIsNothingSaid) {
  GenerationTotals totals;
  totals.add(IterationMetrics{});  // an iteration that took what the one before had written
  EXPECT_EQ(totals.describe(), "");
  EXPECT_EQ(totals.to_json(), "");
  totals.add(metrics_of({8, 0, 16, 2, 0, 0}));
  totals.add(IterationMetrics{});
  EXPECT_EQ(nlohmann::json::parse(totals.to_json()).at("occupancy"), 0.5);
}

}  // namespace
}  // namespace trireme::report
