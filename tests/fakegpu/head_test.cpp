// The head's kernels on fibers (blocks.hpp) against the host's over the same chunks: bit for bit,
// in memory of the exact size.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "fakegpu/blocks.hpp"
#include "fakegpu/fake_gpu.hpp"
#include "kernels/row_functors.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "trireme/kernels/log_sum_exp.hpp"

namespace trireme::kernels {
namespace {

struct Problem {
  int64_t rows, vocabulary, chunk;
  bool with_entropy;
};

template <class T>
class Head {
 public:
  Head(const Problem& problem, unsigned seed)
      : p_(problem), random_(seed), all_(static_cast<size_t>(p_.rows * p_.vocabulary)) {
    std::normal_distribution<float> normal(0, 4);
    for (T& logit : all_) logit = narrow<T>(normal(random_));
    for (int64_t row = 0; row < p_.rows; ++row)
      targets_.push_back(static_cast<int64_t>(random_()) % p_.vocabulary);
    if (p_.rows > 2)
      logit(0, p_.vocabulary - 1) = narrow<T>(std::numeric_limits<float>::quiet_NaN());
    if (p_.rows > 2) logit(1, 0) = narrow<T>(-std::numeric_limits<float>::infinity());
    for (auto* of_rows : {&log_probs, &log_sum_exp, &entropy})
      of_rows->resize(static_cast<size_t>(p_.rows));
    for (auto* column : {&grad_log_probs_, &grad_entropy_}) {
      for (int64_t row = 0; row < p_.rows; ++row) column->push_back(normal(random_));
    }
    if (p_.rows > 1) grad_entropy_.back() = 0;
  }

  void on_device() {
    std::vector<HeadRow> seen(static_cast<size_t>(p_.rows));
    for_chunks([&](int64_t first, std::vector<T>& logits) {
      HeadScan scan{chunk(first, logits),
                    seen.data(),
                    p_.with_entropy,
                    first + columns(first) == p_.vocabulary,
                    log_probs.data(),
                    log_sum_exp.data(),
                    p_.with_entropy ? entropy.data() : nullptr};
      device_kernels()->head.scan(scan);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    });
    for_chunks([&](int64_t first, std::vector<T>& logits) {
      HeadGradient gradient{chunk(first, logits), log_sum_exp.data(), nullptr,
                            grad_log_probs_.data(), nullptr};
      if (p_.with_entropy)
        std::tie(gradient.entropy, gradient.grad_entropy) =
            std::tuple(entropy.data(), grad_entropy_.data());
      device_kernels()->head.gradient(gradient);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      slopes.insert(slopes.end(), logits.begin(), logits.end());
    });
  }

  // As token_log_probs() has it.
  void on_host() {
    std::vector<LogSumExp> seen(static_cast<size_t>(p_.rows));
    for_chunks([&](int64_t first, std::vector<T>& logits) {
      for (int64_t row = 0; row < p_.rows; ++row) {
        const T* of_row = logits.data() + row * columns(first);
        const auto add =
            p_.with_entropy
                ? static_cast<void (*)(LogSumExp&, const T*, int64_t, float)>(update_with_entropy)
                : static_cast<void (*)(LogSumExp&, const T*, int64_t, float)>(update);
        add(seen[static_cast<size_t>(row)], of_row, columns(first), scale);
        const int64_t target = targets_[static_cast<size_t>(row)] - first;
        if (target >= 0 && target < columns(first))
          log_probs[static_cast<size_t>(row)] = widen(of_row[target]) * scale;
      }
    });
    for (size_t row = 0; row < seen.size(); ++row) {
      log_sum_exp[row] = seen[row].log_sum_exp();
      log_probs[row] -= log_sum_exp[row];
      entropy[row] = p_.with_entropy ? seen[row].entropy() : 0.f;
    }
    for_chunks([&](int64_t first, std::vector<T>& logits) {
      for (int64_t row = 0; row < p_.rows; ++row)
        gradient_of(row, first, logits.data() + row * columns(first));
      slopes.insert(slopes.end(), logits.begin(), logits.end());
    });
  }

  std::vector<float> log_probs, log_sum_exp, entropy;
  std::vector<T> slopes;  // of the logits, chunk after chunk

 private:
  static constexpr float scale = 1 / 0.7f;

  T& logit(int64_t row, int64_t id) { return all_[static_cast<size_t>(row * p_.vocabulary + id)]; }
  int64_t columns(int64_t first) const { return std::min(p_.chunk, p_.vocabulary - first); }
  HeadChunk chunk(int64_t first, std::vector<T>& logits) const {
    return {logits.data(), sizeof(T) == 2, p_.rows, columns(first), first, targets_.data(), scale};
  }
  template <class Body>
  void for_chunks(const Body& body) {
    for (int64_t first = 0; first < p_.vocabulary; first += p_.chunk) {
      std::vector<T> logits;
      for (int64_t row = 0; row < p_.rows; ++row) {
        for (int64_t i = 0; i < columns(first); ++i) logits.push_back(logit(row, first + i));
      }
      body(first, logits);
    }
  }
  void gradient_of(int64_t row, int64_t first, T* logits) const {
    const auto r = static_cast<size_t>(row);
    SoftmaxGradient g{scale, log_sum_exp[r], 0, grad_log_probs_[r], 0};
    if (p_.with_entropy) {
      g.entropy = entropy[r];
      g.grad_entropy = grad_entropy_[r];
    }
    const int64_t target = targets_[r] - first;
    const bool here = target >= 0 && target < columns(first);
    float own = here ? widen(logits[target]) : 0;
    softmax_gradient(g, logits, columns(first));
    if (!here) return;
    softmax_gradient(g, &own, 1);
    logits[target] = narrow<T>(own + scale * grad_log_probs_[r]);
  }

  Problem p_;
  std::mt19937 random_;
  std::vector<T> all_;
  std::vector<int64_t> targets_;
  std::vector<float> grad_log_probs_, grad_entropy_;
};

template <class T>
void expect_same(const std::vector<T>& got, const std::vector<T>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(widen(got[i]) == widen(want[i]) ||
                (std::isnan(widen(got[i])) && std::isnan(widen(want[i]))))
        << what << " " << i << ": " << widen(got[i]) << " for " << widen(want[i]);
  }
}

class HeadInBlocks : public testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override {
    enable_device_kernels();
    fakegpu::set_delays({.legacy_us = 0, .others_us = 0});
    fakegpu::set_block_order({.seed = GetParam()});
  }
  void TearDown() override { set_device_kernels(nullptr); }

  template <class T>
  static void compare(const Problem& problem) {
    Head<T> host(problem, 7), device(problem, 7);
    host.on_host();
    device.on_device();
    ASSERT_THAT(fakegpu::take_findings(), testing::IsEmpty());
    expect_same(device.log_sum_exp, host.log_sum_exp, "log-sum-exp");
    expect_same(device.log_probs, host.log_probs, "log-prob");
    if (problem.with_entropy) expect_same(device.entropy, host.entropy, "entropy");
    expect_same(device.slopes, host.slopes, "gradient");
  }
};

// Rows around a team's four, chunks around its sixteen lanes, the last one shorter.
TEST_P(HeadInBlocks, LogProbsAndGradientsAreTheHosts) {
  for (const bool with_entropy : {false, true}) {
    for (const Problem& problem : {Problem{1, 1, 1, with_entropy},
                                   {3, 15, 16, with_entropy},
                                   {4, 17, 16, with_entropy},
                                   {5, 257, 256, with_entropy},
                                   {9, 1003, 300, with_entropy}}) {
      compare<float>(problem);
      compare<uint16_t>(problem);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, HeadInBlocks, testing::Values(1u, 2u));

}  // namespace
}  // namespace trireme::kernels
