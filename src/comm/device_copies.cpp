#include "trireme/comm/device_copies.hpp"

#include <cstring>

#include "comm/shard_exchange_parts.hpp"
#include "trireme/base/error.hpp"

namespace trireme::comm {

RowCopy RowCopy::joined() const {
  if (rows <= 1 || to_stride != bytes || from_stride != bytes) return *this;
  return {to, from, 1, rows * bytes, rows * bytes, rows * bytes};
}

bool RowCopy::take(const RowCopy& next) {
  if (rows == 1 && next.rows == 1 && next.to == to + bytes && next.from == from + bytes) {
    bytes += next.bytes;
    to_stride = from_stride = bytes;
    return true;
  }
  const bool alike =
      next.bytes == bytes && next.to_stride == to_stride && next.from_stride == from_stride;
  if (!alike || next.to != to + rows * to_stride || next.from != from + rows * from_stride)
    return false;
  rows += next.rows;
  return true;
}

void start_copy(const RowCopy& copy) {
  EXPECT(device_support().start_copy != nullptr);
  if (copy.rows > 0 && copy.bytes > 0) device_support().start_copy(copy.joined());
}

void finish_copies() {
  EXPECT(device_support().finish_copies != nullptr);
  device_support().finish_copies();
}

namespace {

class HostCopies final : public TwoWayCopies {
 public:
  void to_device(Half, std::span<const Copy> copies) override { copy(copies); }
  void to_host(Half, std::span<const Copy> copies) override { copy(copies); }
  void finish() override {}

 private:
  static void copy(std::span<const Copy> copies) {
    for (const Copy& c : copies) std::memcpy(c.to, c.from, static_cast<size_t>(c.bytes));
  }
};

}  // namespace

std::unique_ptr<TwoWayCopies> make_two_way_copies() {
  if (device_support().make_two_way_copies == nullptr) return std::make_unique<HostCopies>();
  return device_support().make_two_way_copies();
}

std::vector<uint64_t> sum_rows(std::span<const DeviceRows> rows) {
  EXPECT(device_support().sum_rows != nullptr);
  return device_support().sum_rows(rows);
}

}  // namespace trireme::comm
