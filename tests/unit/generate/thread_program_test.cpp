// How often the threads of a step meet, and how attention is shared among them.
#include "torch/torch.hpp"

#include "generate/thread_program.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "generate/attention_units.hpp"
#include "tiny_model.hpp"
#include "trireme/kernels/decode_attention.hpp"

namespace trireme::generate {
namespace {

ThreadProgram program_of(const model::ModelSpec& spec, int degree = 1) {
  return make_thread_program(spec, GeneratorWeights(spec, config::DType::f32, 0, degree));
}

// Before rotation, the product with attention's result, the sum of both streams, twice, and the
// product with the gate's result.
TEST(ThreadProgram, ThreadsMeetFiveTimesALayerWhereEachDoesTheRowsForItself) {
  const auto plain = test::tiny_spec();
  auto qwen3 = plain.shape;
  qwen3.architecture = config::Architecture::qwen3;
  for (const auto& spec : {plain, test::tiny_spec(500, true, true),
                           model::describe(qwen3, model::HeadKind::language)}) {
    const ThreadProgram program = program_of(spec);
    for (int layer = 0; layer < static_cast<int>(spec.shape.layers); ++layer) {
      EXPECT_EQ(program.meetings(layer, RowWork::repeated), 5);
      EXPECT_EQ(program.meetings(layer, RowWork::shared), 8);
      EXPECT_EQ(program.meetings(layer, RowWork::whole), 2) << "around attention";
    }
  }
}

TEST(ThreadProgram, ABiasAfterTheSumIsOneMeetingMore) {
  auto shape = test::tiny_spec().shape;
  shape.o_bias = true;
  EXPECT_EQ(
      program_of(model::describe(shape, model::HeadKind::language)).meetings(1, RowWork::repeated),
      6);
}

// Both sums over the ranks have a meeting inside, and none follows them.
TEST(ThreadProgram, RanksThatShareAModelMeetAsOftenAndAroundTheirSums) {
  EXPECT_EQ(program_of(test::tiny_spec(), 3).meetings(1, RowWork::repeated), 7);
}

StepBatch batch_of(const std::vector<std::pair<int64_t, int64_t>>& positions_and_rows) {
  StepBatch batch;
  for (const auto& [position, rows] : positions_and_rows) {
    batch.sequences.push_back({{}, position, rows});
    for (int64_t i = 0; i < rows; ++i) {
      batch.ids.push_back(0);
      batch.positions.push_back(position + i);
    }
  }
  return batch;
}

// Work of the busiest thread among `threads`, beside that of all; every query, head and key that it
// sees is somebody's once.
struct Load {
  double longest = 0, all = 0;
  double efficiency(int threads) const { return all / (threads * longest); }
};
Load load_of(const StepBatch& batch, int64_t kv_heads, int threads, int64_t together) {
  const AttentionUnits shared = share_attention(batch, kv_heads, threads, together);
  std::map<std::tuple<int64_t, int64_t, int64_t>, int> times;  // row, head, chunk
  std::vector<double> busy(static_cast<size_t>(threads), 0);
  const auto add = [&](int thread, const AttentionUnit& unit, int64_t chunk) {
    for (int64_t i = 0; i < unit.rows; ++i) {
      const int64_t row = unit.first_row + i, keys = batch.positions[static_cast<size_t>(row)] + 1 -
                                                     chunk * kernels::key_chunk;
      EXPECT_EQ(unit.keys + i, batch.positions[static_cast<size_t>(row)] + 1);
      if (keys > 0) ++times[{row, unit.kv_head, chunk}];
      busy[static_cast<size_t>(thread)] +=
          static_cast<double>(std::clamp<int64_t>(keys, 0, kernels::key_chunk));
    }
  };
  for (int thread = 0; thread < threads; ++thread) {
    if (shared.parts.empty()) {
      deal(std::ssize(shared.units), thread, threads, [&](int64_t u) {
        const AttentionUnit& unit = shared.units[static_cast<size_t>(u)];
        for (int64_t chunk = 0; chunk < unit.chunks; ++chunk) add(thread, unit, chunk);
      });
    } else {
      deal(std::ssize(shared.parts), thread, threads, [&](int64_t p) {
        add(thread, shared.units[shared.parts[static_cast<size_t>(p)].unit],
            shared.parts[static_cast<size_t>(p)].chunk);
      });
    }
  }
  size_t want = 0;
  for (const int64_t position : batch.positions)
    want += static_cast<size_t>(kernels::key_chunks(position + 1) * kv_heads);
  EXPECT_EQ(times.size(), want);
  for (const auto& [piece, count] : times) EXPECT_EQ(count, 1);
  return {*std::max_element(busy.begin(), busy.end()),
          std::accumulate(busy.begin(), busy.end(), 0.0)};
}

TEST(AttentionUnits, KeepAllThreadsBusy) {
  for (const int threads : {2, 8, 16}) {
    const auto efficiency = [&](const std::vector<std::pair<int64_t, int64_t>>& rows,
                                int64_t kv_heads) {
      return load_of(batch_of(rows), kv_heads, threads, 16).efficiency(threads);
    };
    EXPECT_GE(efficiency({{16383, 1}}, 3), 0.8) << "one long text, " << threads;
    EXPECT_GE(efficiency({{16383, 1}}, 8), 0.8) << threads;
    EXPECT_GE(efficiency({{8000, 1}, {3000, 1}}, 3), 0.8) << threads;
    EXPECT_GE(efficiency({{0, 512}}, 3), 0.8) << "a prompt, " << threads;
    EXPECT_GE(efficiency({{15872, 512}}, 3), 0.8) << "the end of a long one, " << threads;
  }
}

TEST(AttentionUnits, GoInPartsWhereThatHelpsOnly) {
  const auto parts = [](const StepBatch& batch, int64_t kv_heads, int threads) {
    return share_attention(batch, kv_heads, threads, 16).parts.size();
  };
  EXPECT_EQ(parts(batch_of({{2000, 1}}), 2, 2), 8u) << "four chunks, two heads";
  EXPECT_EQ(parts(batch_of({{2000, 1}}), 2, 1), 0u);
  EXPECT_EQ(parts(batch_of({{511, 1}}), 2, 8), 0u) << "one chunk";
  EXPECT_EQ(parts(batch_of({{512, 1}}), 2, 8), 4u);
  EXPECT_EQ(parts(batch_of({{2000, 1}, {2000, 1}, {2000, 1}, {2000, 1}}), 2, 2), 0u)
      << "enough without";
  EXPECT_EQ(parts(batch_of({{2000, 40}}), 2, 8), 0u) << "a prompt";
}

}  // namespace
}  // namespace trireme::generate
