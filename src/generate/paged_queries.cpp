#include "torch/torch.hpp"

#include "paged_queries.hpp"

#include <cmath>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/scalar_type.hpp"
#include "trireme/model/gathered_attention.hpp"

namespace trireme::generate {

void PagedQueries::add(int64_t row, int64_t keys, std::span<const int32_t> pages) {
  const auto query = static_cast<int32_t>(queries_.size());
  queries_.push_back({keys, row, std::ssize(pages_), std::ssize(chunks_)});
  for (int32_t chunk = 0; chunk < kernels::attention_chunks(keys); ++chunk)
    chunks_.push_back({query, chunk});
  pages_.insert(pages_.end(), pages.begin(), pages.end());
}

void PagedQueries::fill_up(int64_t chunks) {
  EXPECT(chunks >= std::ssize(chunks_));
  chunks_.resize(static_cast<size_t>(chunks), kernels::chunk_of_nobody);
}

void PagedQueries::put(Upload& upload) {
  query_piece_ = upload.put(queries_);
  chunk_piece_ = upload.put(chunks_);
  page_piece_ = upload.put(pages_);
}

void PagedQueries::attend(PagedKernel& kernel, const Upload& upload, const at::Tensor& q,
                          double scale, const CacheLayer& layer, const at::Tensor& out) const {
  const int64_t heads = q.size(1), head_dim = q.size(2), chunks = std::ssize(chunks_);
  if (!kernel.sums.defined()) {
    kernel.sums = at::empty({chunks, heads, head_dim}, q.options().dtype(at::kFloat));
    kernel.weights = at::empty({chunks, heads, 2}, kernel.sums.options());
  }
  kernels::PagedAttention a{};
  a.q = q.const_data_ptr();
  a.keys = layer.keys.const_data_ptr();
  a.values = layer.values.const_data_ptr();
  a.out = out.mutable_data_ptr();
  a.bf16 = q.scalar_type() == at::kBFloat16;
  a.heads = heads;
  a.kv_heads = layer.keys.size(1);
  a.head_dim = head_dim;
  a.page_size = kernel.page_size;
  a.scale = static_cast<float>(scale);
  a.queries = std::ssize(queries_);
  a.chunks = chunks;
  a.query = upload.data<kernels::PagedQuery>(query_piece_);
  a.chunk = upload.data<kernels::PagedChunk>(chunk_piece_);
  a.pages = upload.data<int32_t>(page_piece_);
  a.sums = kernel.sums.mutable_data_ptr<float>();
  a.weights = kernel.weights.mutable_data_ptr<float>();
  kernel.run(a);
}

std::string paged_attention_problem(at::Device device, AttendPages kernel,
                                    const LocalShape& shape) {
  constexpr int64_t page_size = 16, pages = 30;
  const at::ScalarType type = kernels::scalar_type(shape.type);
  const auto made_up = [&](int64_t rows, int64_t its_heads, double frequency) {
    const at::Tensor steps =
        at::arange(rows * its_heads * shape.head_dim, at::TensorOptions().dtype(at::kFloat))
            .mul(frequency);
    return steps.sin().mul(2).view({rows, its_heads, shape.head_dim}).to(type).to(device);
  };
  const at::Tensor keys = made_up(pages * page_size, shape.kv_heads, 0.37),
                   values = made_up(pages * page_size, shape.kv_heads, 0.11);
  PagedQueries queries;
  model::GatheredLengths lengths;
  std::vector<int64_t> slots;
  int32_t next = 0;
  for (const int64_t length : {1, 16, 300, 129}) {  // one chunk, and several
    std::vector<int32_t> its_pages;
    for (int64_t first = 0; first < length; first += page_size)
      its_pages.push_back(static_cast<int32_t>(next++ * 7 % pages));
    queries.add(std::ssize(lengths.queries) - 1, length, its_pages);
    for (int64_t i = 0; i < length; ++i)
      slots.push_back(its_pages[static_cast<size_t>(i / page_size)] * page_size + i % page_size);
    lengths.add(1, length);
  }
  const at::Tensor q = made_up(std::ssize(lengths.queries) - 1, shape.heads, 0.73);
  Upload upload;
  queries.put(upload);
  upload.send(device);
  const auto narrow = [&](const std::vector<int64_t>& ends) {
    return at::tensor(ends, at::TensorOptions().dtype(at::kLong)).to(at::kInt).to(device);
  };
  lengths.queries_device = narrow(lengths.queries);
  lengths.keys_device = narrow(lengths.keys);
  const at::Tensor where = at::tensor(slots, at::TensorOptions().dtype(at::kLong)).to(device);
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  const at::Tensor want = model::attend_gathered(q, keys.index_select(0, where),
                                                 values.index_select(0, where), scale, lengths);
  const at::Tensor got = at::full_like(q, NAN);
  PagedKernel paged{kernel, page_size};
  queries.attend(paged, upload, q, scale, {keys, values}, got);
  const at::Tensor largest = got.to(at::kDouble).sub(want.to(at::kDouble)).abs().max().to(at::kCPU);
  const double error = *largest.const_data_ptr<double>();
  if (error <= (type == at::kFloat ? 1e-4 : 3e-2)) return {};
  return base::text("attention over pages in ", c10::toString(type), " differs from LibTorch's by ",
                    error);
}

}  // namespace trireme::generate
