// Point-to-point transfers of any size.
#include <algorithm>
#include <utility>
#include <vector>

#include "comm/mpi_support.hpp"
#include "trireme/trace/activity.hpp"

namespace trireme::comm {

struct Request::Impl {
  std::vector<MPI_Request> pieces;
};

Request::Request() = default;
Request::Request(Request&&) noexcept = default;

Request& Request::operator=(Request&& other) noexcept {
  if (this != &other) {
    if (impl_)
      MPI_Waitall(static_cast<int>(impl_->pieces.size()), impl_->pieces.data(),
                  MPI_STATUSES_IGNORE);
    impl_ = std::move(other.impl_);
  }
  return *this;
}

Request::~Request() {
  if (impl_)
    MPI_Waitall(static_cast<int>(impl_->pieces.size()), impl_->pieces.data(), MPI_STATUSES_IGNORE);
}

void Request::wait() {
  if (!impl_) return;
  const auto impl = std::move(impl_);
  const trace::Collective waiting{"messages to arrive", "its communicator", 0};
  TRIREME_MPI(
      MPI_Waitall(static_cast<int>(impl->pieces.size()), impl->pieces.data(), MPI_STATUSES_IGNORE));
}

bool Request::test() {
  if (!impl_) return true;
  int done = 0;
  TRIREME_MPI(MPI_Testall(static_cast<int>(impl_->pieces.size()), impl_->pieces.data(), &done,
                          MPI_STATUSES_IGNORE));
  if (done) impl_.reset();
  return done != 0;
}

namespace {

// Calls `transfer(offset, count)` for pieces of at most max_count bytes; an empty message is one
// empty piece.
template <class Transfer>
void byte_pieces(int64_t bytes, Transfer transfer) {
  int64_t done = 0;
  do {
    const int64_t count = std::min(max_count, bytes - done);
    transfer(done, static_cast<int>(count));
    done += count;
  } while (done < bytes);
}

void require_peers(bool have, const char* what) {
  if (!have) throw InternalError(base::text(what, " on a communicator of one rank"));
}

}  // namespace

void CommView::send(const void* data, int64_t bytes, int to, Tag tag) const {
  require_peers(state_ != nullptr, "send");
  const trace::Collective waiting{"send", name().c_str(), bytes};
  byte_pieces(bytes, [&](int64_t offset, int count) {
    TRIREME_MPI(MPI_Send(static_cast<const std::byte*>(data) + offset, count, MPI_BYTE, to,
                         static_cast<int>(tag), state_->handle));
  });
}

void CommView::receive(void* data, int64_t bytes, int from, Tag tag) const {
  require_peers(state_ != nullptr, "receive");
  const trace::Collective waiting{"receive", name().c_str(), bytes};
  byte_pieces(bytes, [&](int64_t offset, int count) {
    TRIREME_MPI(MPI_Recv(static_cast<std::byte*>(data) + offset, count, MPI_BYTE, from,
                         static_cast<int>(tag), state_->handle, MPI_STATUS_IGNORE));
  });
}

Request CommView::send_begin(const void* data, int64_t bytes, int to, Tag tag) const {
  require_peers(state_ != nullptr, "send");
  Request request;
  request.impl_ = std::make_unique<Request::Impl>();
  byte_pieces(bytes, [&](int64_t offset, int count) {
    MPI_Request piece = MPI_REQUEST_NULL;
    TRIREME_MPI(MPI_Isend(static_cast<const std::byte*>(data) + offset, count, MPI_BYTE, to,
                          static_cast<int>(tag), state_->handle, &piece));
    request.impl_->pieces.push_back(piece);
  });
  return request;
}

Request CommView::receive_begin(void* data, int64_t bytes, int from, Tag tag) const {
  require_peers(state_ != nullptr, "receive");
  Request request;
  request.impl_ = std::make_unique<Request::Impl>();
  byte_pieces(bytes, [&](int64_t offset, int count) {
    MPI_Request piece = MPI_REQUEST_NULL;
    TRIREME_MPI(MPI_Irecv(static_cast<std::byte*>(data) + offset, count, MPI_BYTE, from,
                          static_cast<int>(tag), state_->handle, &piece));
    request.impl_->pieces.push_back(piece);
  });
  return request;
}

}  // namespace trireme::comm
