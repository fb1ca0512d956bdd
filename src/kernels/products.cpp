#include "torch/torch.hpp"

#include "trireme/kernels/products.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "kernels/decode_gemm_kernels.hpp"
#include "kernels/lane_kernels.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/device_product.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/kernels/parallel.hpp"

// MKL's number of threads for this thread alone; LibTorch's wheels export it. Where there is
// another library the reference is null: inside a parallel region those run sequentially by
// themselves.
extern "C" int MKL_Set_Num_Threads_Local(int threads) __attribute__((weak));
// MKL's C = alpha A B + beta C, bf16 into fp32; likewise.
extern "C" void cblas_gemm_bf16bf16f32(int layout, int transpose_a, int transpose_b, int m, int n,
                                       int k, float alpha, const uint16_t* a, int lda,
                                       const uint16_t* b, int ldb, float beta, float* c, int ldc)
    __attribute__((weak));

namespace trireme::kernels {
namespace {

using at::Tensor;

constexpr int64_t operand_bytes = int64_t{8}
                                  << 20;  // of a widened operand block: stays in the cache
constexpr int64_t most_columns = 1024;    // of a block
constexpr int64_t grain_values = int64_t{32} << 10;  // of a task

bool widens(const Tensor& a) {
  return a.scalar_type() == at::kBFloat16 && !multiplies_bf16(a.device());
}

// How the result is cut: rows x columns blocks of nearly equal size.
struct Grid {
  int64_t rows = 1, columns = 1;
};

// Blocks of at least block_rows rows, as many along the rows as there are threads; widened operands
// stay small. How columns are cut must not depend on the rows: the library's sums do depend on the
// number of columns (MKL with AVX2 on Intel: 2,048 and 4,096).
Grid make_grid(int64_t m, int64_t n, int64_t k, bool widened) {
  const int64_t threads = at::get_num_threads();
  const int64_t most_rows =
      std::max<int64_t>(m / (block_rows + row_unit), 1);  // so that none has less when cut at units
  const int64_t lines = std::max(operand_bytes / (4 * std::max<int64_t>(k, 1)), 2 * block_rows);
  Grid grid{std::min(threads, most_rows),
            base::ceil_div(n, widened ? std::min(lines, most_columns) : most_columns)};
  if (widened)
    grid.rows = std::min(base::round_up(std::max(grid.rows, base::ceil_div(m, lines)), grid.rows),
                         most_rows);
  return grid;
}

// A thread's buffer for widened blocks; it grows to operand_bytes or two blocks of rows and stays.
class Workspace {
 public:
  Tensor matrix(int64_t rows, int64_t columns) {
    if (!storage_.defined() || storage_.numel() < rows * columns)
      storage_ = at::empty({rows * columns}, at::kFloat);
    return storage_.narrow(0, 0, rows * columns).view({rows, columns});
  }
  // fp32 copy of a matrix, in the order in which it lies in memory.
  Tensor widened(const Tensor& x) {
    if (x.stride(0) == 1 && x.stride(1) != 1) return widened(x.t()).t();
    return matrix(x.size(0), x.size(1)).copy_(x);
  }

 private:
  Tensor storage_;
};

struct Operands {
  const Tensor &out, &a, &b;
  const std::optional<Tensor>& bias;
  Sum sum;
  bool widened;
};

void multiply_block(const Operands& o, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  thread_local Workspace left, right, result;
  Tensor out = o.out.narrow(0, row, rows).narrow(1, column, columns);
  Tensor a = o.a.narrow(0, row, rows), b = o.b.narrow(1, column, columns);
  if (o.widened) {
    a = left.widened(a);
    b = right.widened(b);
  }
  const bool rounds = out.scalar_type() != at::kFloat;
  Tensor sums = rounds ? result.matrix(rows, columns) : out;
  if (o.sum == Sum::add) {
    sums.addmm_(a, b);
  } else if (o.bias && !rounds) {  // as LibTorch: the fp32 sum starts from the bias
    sums.copy_(o.bias->narrow(0, column, columns).expand({rows, columns}));
    sums.addmm_(a, b);
  } else {
    at::mm_out(sums, a, b);
    if (o.bias) sums.add_(o.bias->narrow(0, column, columns).to(at::kFloat));
  }
  if (rounds) out.copy_(sums);
}

// Sequential products inside, whatever the library would do by itself.
class Sequential {
 public:
  Sequential() : before_(MKL_Set_Num_Threads_Local != nullptr ? MKL_Set_Num_Threads_Local(1) : 0) {}
  ~Sequential() {
    if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(before_);
  }
  Sequential(const Sequential&) = delete;

 private:
  int before_;
};

// into += values. LibTorch's sum of two types makes an fp32 copy first: 12 bytes a value here, 20
// there.
void add_bf16(Tensor& into, const Tensor& values) {
  if (!into.is_cpu() || !into.is_contiguous() || !values.is_contiguous()) {
    into.add_(values);
    return;
  }
  auto* sums = into.data_ptr<float>();
  const auto* terms = reinterpret_cast<const uint16_t*>(values.const_data_ptr<at::BFloat16>());
  const auto add = lane_kernels().shard.add_bf16;
  parallel_for(0, into.numel(), grain_values, [&](int64_t first, int64_t last) {
    add(sums + first, terms + first, last - first);
  });
}

std::atomic<bool>& exact_wanted() {
  static std::atomic<bool> wanted{true};
  return wanted;
}

// A matrix as BLAS takes it: rows one after the other, or columns.
struct Layout {
  bool transposed = false;
  int64_t stride = 0;
};
std::optional<Layout> layout_of(const Tensor& x) {
  constexpr int64_t most = std::numeric_limits<int>::max();
  for (const bool transposed : {false, true}) {
    const int64_t along = transposed ? 0 : 1, line = x.size(along),
                  stride = x.size(1 - along) > 1 ? x.stride(1 - along) : std::max<int64_t>(line, 1);
    if ((x.stride(along) == 1 || line <= 1) && stride >= line && stride <= most &&
        x.size(0) <= most && x.size(1) <= most)
      return Layout{transposed, stride};
  }
  return std::nullopt;
}

MultiplyOnDevice& product_of_device() {
  static MultiplyOnDevice product = nullptr;
  return product;
}

void multiply_on_host(const DeviceProduct& p) {
  constexpr int row_major = 101, plain = 111, transposed = 112;
  cblas_gemm_bf16bf16f32(row_major, p.a.transposed ? transposed : plain,
                         p.b.transposed ? transposed : plain, p.m, p.n, p.k, 1, p.a.values,
                         p.a.stride, p.b.values, p.b.stride, p.add ? 1 : 0, p.c, p.c_stride);
}

// MKL's product with beta = 0 takes longer than zeros and one with beta = 1. Rows at a time whose
// results stay in the second-level cache between the two; longer ones in one, since MKL needs rows.
void overwrite_on_host(const Tensor& out, const DeviceProduct& whole) {
  constexpr int cache_bytes = 1 << 19, least_rows = 192, most_columns_cut = 1536;
  const int threads = at::get_num_threads(),
            rows = whole.n > most_columns_cut
                       ? whole.m
                       : threads * std::max(least_rows, cache_bytes / (4 * whole.n));
  for (int row = 0; row < whole.m; row += rows) {
    DeviceProduct part = whole;
    part.m = std::min(rows, whole.m - row);
    part.a.values += whole.a.transposed ? row : int64_t{row} * whole.a.stride;
    part.c += int64_t{row} * whole.c_stride;
    part.add = true;
    out.narrow(0, row, part.m).zero_();
    multiply_on_host(part);
  }
}

// out = a b, or out += a b, unrounded. False: it lies in memory as BLAS cannot take it.
bool multiply_exactly(const Tensor& out, const Tensor& a, const Tensor& b, Sum sum) {
  const auto to = layout_of(out), left = layout_of(a), right = layout_of(b);
  if (!to || to->transposed || !left || !right) return false;
  const auto operand = [](const Tensor& x, const Layout& layout) {
    return ProductOperand{reinterpret_cast<const uint16_t*>(x.const_data_ptr<at::BFloat16>()),
                          layout.transposed, static_cast<int>(layout.stride)};
  };
  const DeviceProduct product{static_cast<int>(out.size(0)),
                              static_cast<int>(out.size(1)),
                              static_cast<int>(a.size(1)),
                              operand(a, *left),
                              operand(b, *right),
                              out.mutable_data_ptr<float>(),
                              static_cast<int>(to->stride),
                              sum == Sum::add};
  if (!on_host(out.device())) {
    product_of_device()(product);
  } else {
    product.add ? multiply_on_host(product) : overwrite_on_host(out, product);
  }
  return true;
}

bool multiplies_in_tiles(const Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && x.is_cpu() && on_host(x.device()) &&
         base::has_matrix_units();
}

// Rows and columns in tasks for all threads; no task's results depend on another's size.
void multiply_tiles(const Tensor& out, const Tensor& x, const Tensor& weight,
                    const std::optional<Tensor>& bias) {
  const Tensor rows = x.stride(1) == 1 ? x : x.contiguous(), outputs = weight.contiguous(),
               added = bias ? bias->contiguous() : Tensor();
  const int64_t m = x.size(0), n = weight.size(0);
  GemmArguments all;
  all.type = ElementType::bf16;
  all.weight = outputs.const_data_ptr();
  all.bias = bias ? added.const_data_ptr() : nullptr;
  all.k = x.size(1);
  all.n = n;
  all.ldx = m > 1 ? rows.stride(0) : all.k;
  all.ldy = m > 1 ? out.stride(0) : n;
  all.order.tiles = true;
  all.order.block = gemm_padded(all.k);
  const auto* from = static_cast<const std::byte*>(rows.const_data_ptr());
  auto* to = static_cast<std::byte*>(out.mutable_data_ptr());
  const int64_t block = gemm_tile_rows(all.k), blocks = base::ceil_div(m, block),
                threads = at::get_num_threads();
  const int64_t parts = blocks % threads == 0 ? 1 : threads;
  parallel_for(0, blocks * parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / parts * block, part = task % parts;
      const auto border = [&](int64_t p) {
        return p == parts ? n : p * n / parts / gemm_column_unit * gemm_column_unit;
      };
      GemmArguments a = all;
      a.x = from + row * all.ldx * 2;
      a.y = to + row * all.ldy * 2;
      a.m = std::min(block, m - row);
      gemm_columns(a, border(part), border(part + 1));
    }
  });
}

void multiply_blocks(const Operands& o) {
  const int64_t m = o.out.size(0), n = o.out.size(1);
  if (m == 0 || n == 0) return;
  const Grid grid = make_grid(m, n, o.a.size(1), o.widened);
  const int64_t tasks = grid.rows * grid.columns;
  // At least two tasks, so that a single block too runs inside a parallel region.
  parallel_for(0, std::max<int64_t>(tasks, 2), 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;  // of this thread
    const Sequential sequential;
    for (int64_t task = begin; task < std::min(end, tasks); ++task) {
      const int64_t i = task / grid.columns, j = task % grid.columns;
      const auto border = [&](int64_t block) {
        return block == grid.rows ? m : block * m / grid.rows / row_unit * row_unit;
      };
      const int64_t row = border(i), column = j * n / grid.columns;
      multiply_block(o, row, border(i + 1) - row, column, (j + 1) * n / grid.columns - column);
    }
  });
}

}  // namespace

bool multiplies_bf16(at::Device device) {
  return !device.is_cpu() || base::active_isa() >= base::Isa::avx512_bf16;
}

bool exact_products(at::Device device) {
  const bool able = on_host(device) ? cblas_gemm_bf16bf16f32 != nullptr && base::has_matrix_units()
                                    : product_of_device() != nullptr;
  return able && exact_wanted().load(std::memory_order_relaxed);
}
MultiplyOnDevice device_product() { return product_of_device(); }
void set_device_product(MultiplyOnDevice product) { product_of_device() = product; }
void use_exact_products(bool wanted) { exact_wanted().store(wanted, std::memory_order_relaxed); }

void multiply(const Tensor& out, const Tensor& a, const Tensor& b, Sum sum) {
  EXPECT(a.scalar_type() == b.scalar_type() &&
         (sum == Sum::overwrite || out.scalar_type() == at::kFloat));
  const at::NoGradGuard no_grad;
  if (widens(a)) {
    multiply_blocks({out, a, b, std::nullopt, sum, true});
    return;
  }
  const bool converts = out.scalar_type() != a.scalar_type();
  const bool whole =
      converts && out.scalar_type() == at::kFloat && out.numel() > 0 && a.size(1) > 0;
  if (whole && exact_products(out.device()) && multiply_exactly(out, a, b, sum)) return;
  Tensor target = out;
  if (converts) {  // native bf16 into fp32: rounded on the way, as the library does it
    const Tensor product = at::mm(a, b);
    if (sum == Sum::add) {
      add_bf16(target, product);
    } else {
      target.copy_(product);
    }
  } else if (sum == Sum::add) {
    target.addmm_(a, b);
  } else {
    at::mm_out(target, a, b);
  }
}

std::string exact_product_problem(at::Device device) {
  if (on_host(device) || !exact_products(device)) return {};
  constexpr int64_t m = 40, k = 72, n = 24, margin = 8;
  const at::NoGradGuard no_grad;
  const auto values = [&](int64_t rows, int64_t columns, double frequency) {
    return at::arange(rows * columns, at::TensorOptions().dtype(at::kFloat).device(device))
        .mul(frequency)
        .sin()
        .view({rows, columns})
        .to(at::kBFloat16);
  };
  for (const auto& [a, b] : {std::pair{values(m, k, 0.37), values(k, n, 0.11)},
                             {values(k, m, 0.37).t(), values(n, k, 0.11).t()}}) {
    for (const Sum sum : {Sum::overwrite, Sum::add}) {
      const Tensor whole = at::ones({m, n + margin}, a.options().dtype(at::kFloat)),
                   out = whole.narrow(1, margin, n);
      multiply(out, a, b, sum);
      const Tensor want = at::mm(a.to(at::kFloat), b.to(at::kFloat)).add(sum == Sum::add ? 1 : 0);
      const double error = out.sub(want).abs().max().item<double>();
      if (!(error <= 1e-4))
        return base::text("a product of ", m, " x ", k, " x ", n, " differs from LibTorch's by ",
                          error);
      if (!whole.narrow(1, 0, margin).eq(1).all().item<bool>())
        return "a product writes beside its result";
    }
  }
  return {};
}

void multiply_rows(const Tensor& out, const Tensor& x, const Tensor& weight,
                   const std::optional<Tensor>& bias) {
  EXPECT(x.scalar_type() == weight.scalar_type() && out.scalar_type() == x.scalar_type());
  const at::NoGradGuard no_grad;
  const bool widened = widens(x);
  if (x.is_cpu() && (widened || x.scalar_type() == at::kFloat)) {
    // Whole units first; the rest, with zero rows, is a block of its own.
    const int64_t units = x.size(0) / row_unit * row_unit, whole = units >= block_rows ? units : 0,
                  rest = x.size(0) - whole;
    if (whole > 0)
      multiply_blocks({out.narrow(0, 0, whole), x.narrow(0, 0, whole), weight.t(), bias,
                       Sum::overwrite, widened});
    if (rest == 0) return;
    Tensor block = at::zeros({block_rows, x.size(1)}, x.options()),
           result = at::empty({block_rows, out.size(1)}, out.options());
    block.narrow(0, 0, rest).copy_(x.narrow(0, whole, rest));
    multiply_blocks({result, block, weight.t(), bias, Sum::overwrite, widened});
    Tensor target = out.narrow(0, whole, rest);
    target.copy_(result.narrow(0, 0, rest));
    return;
  }
  if (multiplies_in_tiles(x) && x.size(1) > 0 && out.stride(1) == 1) {
    multiply_tiles(out, x, weight, bias);
    return;
  }
  Tensor target = out;
  if (bias) {
    at::addmm_out(target, *bias, x, weight.t());
  } else {
    at::mm_out(target, x, weight.t());
  }
}

}  // namespace trireme::kernels
