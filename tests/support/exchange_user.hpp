// What tests do with an exchange, on the host or on a device: weights are written, gathered and
// looked at, gradients are summed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/world.hpp"
#include "trireme/base/bf16.hpp"
#include "trireme/comm/shard_exchange.hpp"

namespace trireme::test {

// Where what a test computes itself runs: here and now, or later, in the order of a device's
// stream.
class Lane {
 public:
  struct Use {
    void* data;
    int64_t elements;  // fp32
    bool written;
  };
  virtual ~Lane() = default;
  virtual comm::ExchangeOptions options() const = 0;  // fp32 weights
  virtual void run(const std::vector<Use>& uses, std::function<void()> body) = 0;
  virtual float* allocate(int64_t elements) = 0;  // lives as long as the lane
  virtual void wait() = 0;
  virtual std::shared_ptr<void> during(const char* /*what*/) {
    return nullptr;
  }  // until it is destroyed, this is what the test does
};

class HostLane final : public Lane {
 public:
  explicit HostLane(comm::ExchangeKind kind) : kind_(kind) {}
  comm::ExchangeOptions options() const override {
    comm::ExchangeOptions options;
    options.kind = kind_;
    options.weight_type = comm::DType::f32;
    return options;
  }
  void run(const std::vector<Use>&, std::function<void()> body) override { body(); }
  float* allocate(int64_t elements) override {
    return memory_.emplace_back(static_cast<size_t>(elements)).data();
  }
  void wait() override {}

 private:
  comm::ExchangeKind kind_;
  std::deque<std::vector<float>> memory_;
};

// Per stage its parameters, each with a number of elements per rank; slots begin at multiples
// of 32.
using Stages = std::vector<std::vector<std::pair<size_t, int64_t>>>;
inline std::vector<comm::SlotGeometry> slots_of(const Stages& stages, int ranks) {
  std::vector<comm::SlotGeometry> slots;
  for (const auto& stage : stages) {
    comm::SlotGeometry slot;
    for (const auto& [id, per_rank] : stage) {
      slot.parameters.push_back({id, slot.elements, per_rank});
      slot.elements += (per_rank * ranks + 31) / 32 * 32;
    }
    slots.push_back(slot);
  }
  return slots;
}

// Parameter 0 is in the first and the last (tied). Numbers per rank are odd on purpose.
inline std::vector<comm::SlotGeometry> five_stages(int ranks) {
  return slots_of({{{0, 700}},
                   {{1, 13}, {2, 129}},
                   {{3, 13}, {4, 129}, {5, 1}},
                   {{6, 300}},
                   {{7, 5}, {0, 700}}},
                  ranks);
}

inline std::vector<comm::SlotGeometry> one_stage(int ranks, int64_t per_rank) {
  return slots_of({{{0, per_rank}}}, ranks);
}

// The same slots with gradients of these parameters only; of none for a frozen model.
inline std::vector<comm::SlotGeometry> trainable(std::vector<comm::SlotGeometry> slots,
                                                 const std::vector<size_t>& ids) {
  for (auto& slot : slots) {
    for (auto& parameter : slot.parameters)
      parameter.trainable = std::ranges::find(ids, parameter.id) != ids.end();
  }
  return slots;
}

inline float weight_value(size_t id, int rank, int64_t i, int version) {
  return static_cast<float>(1000 * version + 100 * rank) + static_cast<float>(id) +
         0.001f * static_cast<float>(i);
}
// Values whose sum depends on the order of addition.
inline float gradient_value(int rank, int stage, size_t p, int64_t i, int round) {
  return (rank % 2 ? -1.f : 1.f) * (1.0e4f / static_cast<float>(1 + rank)) +
         0.37f * static_cast<float>(i) + static_cast<float>(stage) + 0.1f * static_cast<float>(p) +
         static_cast<float>(round);
}

// How an exchange adds up what the ranks have, in their order.
using SumOfRanks = std::function<float(const std::vector<float>& of_ranks)>;
inline float fp32_sum(const std::vector<float>& of_ranks) {
  float sum = of_ranks[0];
  for (size_t rank = 1; rank < of_ranks.size(); ++rank) sum += of_ranks[rank];
  return sum;
}
inline float in_bf16(float value) { return base::bf16_to_float(base::float_to_bf16(value)); }

// An exchange and what a model does with it. What is wrong is counted where the lane runs.
class ExchangeUser {
 public:
  ExchangeUser(Lane& lane, std::vector<comm::SlotGeometry> slots,
               const comm::ExchangeOptions& options, SumOfRanks sum = fp32_sum)
      : lane_(lane),
        slots_(std::move(slots)),
        gradient_slots_(comm::gradient_slots(slots_)),
        sum_(std::move(sum)),
        exchange_(comm::make_shard_exchange(world(), slots_, options)) {}

  comm::ShardExchange& operator*() const { return *exchange_; }
  comm::ShardExchange* operator->() const { return exchange_.get(); }
  int last() const { return static_cast<int>(slots_.size()) - 1; }
  int wrong() {  // values, so far
    lane_.wait();
    return wrong_;
  }

  void write(int version) {
    {
      const auto scope = lane_.during("begin_update");
      exchange_->begin_update();
    }
    std::vector<bool> done(16, false);
    for (const auto& slot : slots_) {
      for (const auto& parameter : slot.parameters) {
        if (done[parameter.id]) continue;
        done[parameter.id] = true;
        auto* own = reinterpret_cast<float*>(exchange_->own_slice(parameter.id));
        lane_.run({{own, parameter.per_rank, true}}, [=] {
          for (int64_t i = 0; i < parameter.per_rank; ++i)
            own[i] = weight_value(parameter.id, world().rank(), i, version);
        });
      }
    }
    exchange_->end_update();
  }
  void gather(int stage, const char* what = "gather") {
    const auto scope = lane_.during(what);
    exchange_->gather(stage);
  }
  // Gathered, looked at and released.
  void check_weights(int stage, int version) {
    const auto scope = lane_.during("gathered");
    const auto pointers = exchange_->gathered(stage);
    const auto& slot = slots_[static_cast<size_t>(stage)];
    ASSERT_EQ(pointers.size(), slot.parameters.size());
    for (size_t p = 0; p < pointers.size(); ++p) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(pointers[p]) % 64, 0u);
      auto* values = reinterpret_cast<float*>(pointers[p]);
      const auto parameter = slot.parameters[p];
      lane_.run({{values, world().size() * parameter.per_rank, false}}, [=, this] {
        for (int rank = 0; rank < world().size(); ++rank) {
          for (int64_t i = 0; i < parameter.per_rank; ++i) {
            wrong_ += values[rank * parameter.per_rank + i] !=
                      weight_value(parameter.id, rank, i, version);
          }
        }
      });
    }
    EXPECT_TRUE(exchange_->holds(stage));
    exchange_->release(stage);
  }
  void fill_gradients(int stage, int round) {
    const auto scope = lane_.during("gradients");
    const auto pointers = exchange_->gradients(stage);
    const auto& slot = gradient_slots_[static_cast<size_t>(stage)];
    ASSERT_EQ(pointers.size(), slot.parameters.size());
    for (size_t p = 0; p < pointers.size(); ++p) {
      const int64_t n = slot.parameters[p].per_rank * world().size();
      lane_.run({{pointers[p], n, true}}, [=, this, values = pointers[p]] {
        for (int64_t i = 0; i < n; ++i)
          values[i] = gradient_value(world().rank(), stage, p, i, round);
      });
    }
  }
  void reduce(int stage) {
    const auto scope = lane_.during("reduce");
    exchange_->reduce(stage);
  }
  void finish(int stage, int round) {
    const auto scope = lane_.during("finish_reduce");
    const auto& slot = gradient_slots_[static_cast<size_t>(stage)];
    std::vector<float*> into;
    for (const auto& parameter : slot.parameters) {
      float* sum = into.emplace_back(lane_.allocate(parameter.per_rank));
      lane_.run({{sum, parameter.per_rank, true}},
                [=] { std::fill(sum, sum + parameter.per_rank, 0.5f); });
    }
    exchange_->finish_reduce(stage, into);
    for (size_t p = 0; p < into.size(); ++p) {
      const int64_t n = slot.parameters[p].per_rank;
      lane_.run({{into[p], n, false}}, [=, this, sums = into[p]] {
        for (int64_t i = 0; i < n; ++i) {
          const int64_t at = world().rank() * n + i;
          std::vector<float> of_ranks;
          for (int rank = 0; rank < world().size(); ++rank)
            of_ranks.push_back(gradient_value(rank, stage, p, at, round));
          wrong_ += sums[i] != 0.5f + sum_(of_ranks);
        }
      });
    }
  }
  // The stage order of training. The next stage is gathered while one is in use; every rank is late
  // in its turn.
  void forward(int version) {
    gather(0);
    for (int stage = 0; stage <= last(); ++stage) {
      if (stage < last()) gather(stage + 1);
      dawdle(stage + version);
      check_weights(stage, version);
    }
  }
  void backward(int version) {
    int reducing = -1;
    for (int stage = last(); stage >= 0; --stage) {
      const bool trainable = !gradient_slots_[static_cast<size_t>(stage)].parameters.empty();
      gather(stage);
      if (stage > 0) gather(stage - 1);
      check_weights(stage, version);
      if (trainable) fill_gradients(stage, version);
      dawdle(stage);
      if (reducing >= 0) finish(reducing, version);
      reducing = trainable ? stage : -1;
      if (trainable) reduce(stage);
    }
    if (reducing >= 0) finish(reducing, version);
  }

 private:
  static void dawdle(int step) {
    if (step % world().size() == world().rank())
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  Lane& lane_;
  std::vector<comm::SlotGeometry> slots_, gradient_slots_;
  SumOfRanks sum_;
  std::atomic<int> wrong_{0};
  std::unique_ptr<comm::ShardExchange> exchange_;
};

}  // namespace trireme::test
