// Kernels for GPUs beside what the device copies and multiplies (rows C4, C5): attention over
// pages, the optimizer's pass, the head's log-probs.
//   perf_device_kernels-gpu [--sequences 64] [--context 4096] [--elements N] [--tokens 4096]
//   [--hidden 4096] [--vocabulary 128256] [--product 8192] [--repetitions 10]
// Prints one JSON object: the best of the repetitions each, in GB/s of what must be read and
// written and in TFLOP/s.
#include "torch/torch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "harness/arguments.hpp"
#include "harness/site.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "trireme/kernels/to_device.hpp"
#include "trireme/kernels/token_log_probs.hpp"

namespace {

using namespace trireme;
using at::Tensor;

struct Setting {
  int64_t heads = 32, kv_heads = 8, head_dim = 128, sequences = 64, context = 4096,
          elements = int64_t{1} << 28, tokens = 4096, hidden = 4096, vocabulary = 128256,
          product = 8192, repetitions = 10;
};

Setting parse(int argc, char** argv) {
  Setting s;
  CLI::App app("Kernels for GPUs");
  app.add_option("--sequences", s.sequences, "that decode, each with a row")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--context", s.context, "positions that each sees")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--elements", s.elements, "of the optimizer's shard, and copied")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--tokens", s.tokens, "of the head")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--hidden", s.hidden)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--vocabulary", s.vocabulary)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--product", s.product,
                 "rows, columns and inner size of the bf16 product that is the measure")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--repetitions", s.repetitions)->check(CLI::PositiveNumber)->capture_default_str();
  perf::parse_or_exit(app, argc, argv);
  return s;
}

class Bench {
 public:
  Bench(const Setting& setting, const perf::Site& site)
      : s_(setting),
        site_(site),
        bf16_(at::TensorOptions().dtype(at::kBFloat16).device(site.device)) {}

  void run() {
    const kernels::DeviceKernels* own = kernels::device_kernels();
    VALIDATE(own != nullptr, ExitCode::unfit_environment,
             "the program's kernels for GPUs were put aside");
    const double copied = copy(), multiplied = product();
    std::printf(
        "{\"copy_gb_per_s\": %.2f, \"product_tflops\": %.3f, \"attention_gb_per_s\": %.2f, "
        "\"adamw_gb_per_s\": %.2f, \"head_tflops\": %.3f}\n",
        copied, multiplied, attention(*own), adamw(*own), head());
  }

 private:
  // Seconds of the fastest repetition; the first call does not count.
  double best(const std::function<void()>& work) const {
    double out = INFINITY;
    for (int64_t i = 0; i <= s_.repetitions; ++i) {
      perf::wait_for(site_);
      const base::Stopwatch watch;
      work();
      perf::wait_for(site_);
      if (i > 0) out = std::min(out, watch.seconds());
    }
    return out;
  }
  Tensor random(at::IntArrayRef shape) const {
    return at::normal(0.0, 0.02, shape, std::nullopt, bf16_.dtype(at::kFloat)).to(at::kBFloat16);
  }
  template <class T>
  Tensor on_device(const std::vector<T>& values) const {
    const Tensor host = at::empty({static_cast<int64_t>(values.size() * sizeof(T))}, at::kByte);
    std::memcpy(host.mutable_data_ptr(), values.data(), values.size() * sizeof(T));
    return site_.device.is_cpu() ? host.clone() : kernels::to_device(host, site_.device);
  }

  double copy() const {
    const Tensor from = at::zeros({s_.elements}, bf16_.dtype(at::kFloat)),
                 to = at::empty_like(from);
    return 2e-9 * static_cast<double>(from.nbytes()) / best([&] { to.copy_(from); });
  }

  double product() const {
    const Tensor a = random({s_.product, s_.product}), b = random({s_.product, s_.product});
    Tensor c = at::empty_like(a);
    return 2e-12 * std::pow(static_cast<double>(s_.product), 3) /
           best([&] { at::mm_out(c, a, b); });
  }

  // Keys and values are read once.
  double attention(const kernels::DeviceKernels& own) const {
    constexpr int64_t page_size = 16;
    const int64_t pages = s_.sequences * ((s_.context + page_size - 1) / page_size),
                  chunks = kernels::attention_chunks(s_.context);
    const Tensor keys = random({pages, page_size, s_.kv_heads, s_.head_dim}),
                 values = random(keys.sizes()), q = random({s_.sequences, s_.heads, s_.head_dim});
    const Tensor out = at::empty_like(q),
                 sums = at::empty({s_.sequences * chunks, s_.heads, s_.head_dim},
                                  bf16_.dtype(at::kFloat));
    const Tensor weights = at::empty({s_.sequences * chunks, s_.heads, 2}, bf16_.dtype(at::kFloat));
    std::vector<kernels::PagedQuery> queries;
    std::vector<kernels::PagedChunk> parts;
    std::vector<int32_t> places;
    for (int64_t i = 0; i < s_.sequences; ++i) {
      queries.push_back({s_.context, i, i * (pages / s_.sequences), i * chunks});
      for (int64_t c = 0; c < chunks; ++c)
        parts.push_back({static_cast<int32_t>(i), static_cast<int32_t>(c)});
    }
    for (int64_t p = 0; p < pages; ++p)
      places.push_back(static_cast<int32_t>((p * 7919) % pages));  // a prime: all over the cache
    const Tensor query = on_device(queries), chunk = on_device(parts), page = on_device(places);
    const kernels::PagedAttention arguments{
        q.const_data_ptr(),
        keys.const_data_ptr(),
        values.const_data_ptr(),
        out.mutable_data_ptr(),
        true,
        s_.heads,
        s_.kv_heads,
        s_.head_dim,
        page_size,
        static_cast<float>(1 / std::sqrt(static_cast<double>(s_.head_dim))),
        s_.sequences,
        s_.sequences * chunks,
        static_cast<const kernels::PagedQuery*>(query.const_data_ptr()),
        static_cast<const kernels::PagedChunk*>(chunk.const_data_ptr()),
        static_cast<const int32_t*>(page.const_data_ptr()),
        sums.mutable_data_ptr<float>(),
        weights.mutable_data_ptr<float>()};
    const double bytes =
        2.0 * 2 * static_cast<double>(s_.sequences * s_.context * s_.kv_heads * s_.head_dim);
    return 1e-9 * bytes / best([&] { own.attend_pages(arguments); });
  }

  // Gradient, master and moments in, the last three and the bf16 weights out, which are read to be
  // compared.
  double adamw(const kernels::DeviceKernels& own) const {
    const auto fp32 = bf16_.dtype(at::kFloat);
    const Tensor master = at::zeros({s_.elements}, fp32),
                 gradient = at::full({s_.elements}, 1e-3, fp32),
                 moment1 = at::zeros({s_.elements}, fp32), moment2 = at::zeros({s_.elements}, fp32),
                 compute = at::zeros({s_.elements}, bf16_),
                 changed = at::zeros({own.adamw_teams(s_.elements)}, fp32.dtype(at::kInt));
    const kernels::AdamWShard shard{master.mutable_data_ptr<float>(),
                                    moment1.mutable_data_ptr<float>(),
                                    moment2.mutable_data_ptr<float>(),
                                    gradient.const_data_ptr<float>(),
                                    static_cast<uint16_t*>(compute.mutable_data_ptr()),
                                    nullptr,
                                    nullptr,
                                    s_.elements};
    return 1e-9 * (4 + 3 * 8 + 4) * static_cast<double>(s_.elements) /
           best([&] { own.adamw(shard, {.lr = 1e-6}, changed.mutable_data_ptr<int32_t>()); });
  }

  // The logits, the same again, and both of their gradients' products, into the slots that training
  // has.
  double head() const {
    const Tensor hidden = random({s_.tokens, s_.hidden}).requires_grad_(true),
                 weight = random({s_.vocabulary, s_.hidden}).requires_grad_(true);
    weight.set_grad_dtype(at::kFloat);
    weight.mutable_grad() = at::zeros(weight.sizes(), bf16_.dtype(at::kFloat));
    const Tensor targets = at::arange(s_.tokens, bf16_.dtype(at::kLong)).remainder(s_.vocabulary);
    const double seconds = best([&] {
      kernels::token_log_probs(hidden, weight, targets, 1.0, kernels::Entropy::skip)
          .log_probs.sum()
          .backward();
      hidden.mutable_grad() = Tensor();
    });
    return 8e-12 * static_cast<double>(s_.tokens) * static_cast<double>(s_.vocabulary) *
           static_cast<double>(s_.hidden) / seconds;
  }

  const Setting& s_;
  perf::Site site_;
  at::TensorOptions bf16_;
};

}  // namespace

int main(int argc, char** argv) {
  const Setting setting = parse(argc, argv);
  try {
    Bench(setting, perf::enter_site(0)).run();
  } catch (const UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
