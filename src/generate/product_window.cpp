#include "torch/torch.hpp"

#include "product_window.hpp"

namespace trireme::generate {

ProductWindow::ProductWindow(comm::RankSums& sums, int64_t rows, int64_t row_bytes)
    : memory_(sums.open_window(rows * row_bytes)),
      bytes_(memory_ != nullptr ? rows * row_bytes : 0),
      taken_(std::make_shared<bool>(false)) {}

at::Tensor ProductWindow::take(int64_t rows, int64_t columns,
                               const at::TensorOptions& options) const {
  const int64_t bytes = rows * columns * static_cast<int64_t>(options.dtype().itemsize());
  if (bytes == 0 || bytes > bytes_ || *taken_) return {};
  *taken_ = true;
  return at::from_blob(
      memory_, {rows, columns}, [taken = taken_](void*) { *taken = false; }, options,
      options.device());  // known: nothing is asked of a device that is recorded
}

}  // namespace trireme::generate
