#include "trireme/comm/comm.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "comm/mpi_support.hpp"
#include "comm/sleep_until.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/fault_point.hpp"
#include "trireme/trace/activity.hpp"
#include "trireme/trace/guards.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::comm {

const std::string& CommView::name() const {
  static const std::string null_name = "self";
  return state_ ? state_->name : null_name;
}

void* CommView::native() const { return state_ ? state_->handle : MPI_COMM_SELF; }

namespace {

// Calls `transfer(pointer, count)` for pieces whose element count fits MPI's int.
template <class Transfer>
void in_pieces(void* data, int64_t count, DType type, Transfer transfer) {
  auto* bytes = static_cast<std::byte*>(data);
  const auto width = static_cast<int64_t>(size_of(type));
  for (int64_t done = 0; done < count; done += max_count) {
    transfer(bytes + done * width, static_cast<int>(std::min(max_count, count - done)));
  }
}

}  // namespace

namespace {
int64_t bytes_of(int64_t count, DType type) { return count * static_cast<int64_t>(size_of(type)); }
}  // namespace

// One call of a collective: noted before it, compared after it when that is due.
struct CommView::Noted {
  // False with one rank, and for a call that a fault of the deck skips.
  static bool wanted(const CommView& view) { return view.state_ && !base::skip_wanted(); }
  Noted(const CommView& view, const char* operation, int64_t count = 0, int type = 0, int root = -1)
      : view_(view) {
    const trace::Guarding guard{trace::Guard::collectives};
    view_.state_->ledger.note(operation, count, type, root);
    due_ = view_.state_->ledger.due();
  }
  // Not in a destructor: it throws.
  void done() const {
    if (due_) view_.compare_calls();
  }

 private:
  const CommView& view_;
  bool due_ = false;
};

void CommView::compare_calls() const {
  const trace::Guarding guard{trace::Guard::collectives};
  const Ledger& ledger = state_->ledger;
  uint64_t extremes[2] = {ledger.hash(),
                          ~ledger.hash()};  // greatest, and complement of the smallest
  TRIREME_MPI(MPI_Allreduce(MPI_IN_PLACE, extremes, 2, MPI_UINT64_T, MPI_MAX, state_->handle));
  if (extremes[0] == ~extremes[1]) return;
  std::vector<Ledger::Entry> all(static_cast<size_t>(size_ * Ledger::kept));
  TRIREME_MPI(MPI_Allgather(ledger.last().data(), static_cast<int>(sizeof ledger.last()), MPI_BYTE,
                            all.data(), static_cast<int>(sizeof ledger.last()), MPI_BYTE,
                            state_->handle));
  const int64_t first = std::max<int64_t>(0, ledger.calls() - Ledger::kept);
  for (int64_t call = first; call < ledger.calls(); ++call) {
    const Ledger::Entry& of_rank_0 = all[static_cast<size_t>(call % Ledger::kept)];
    for (int rank = 1; rank < size_; ++rank) {
      const Ledger::Entry& theirs =
          all[static_cast<size_t>(rank * Ledger::kept + call % Ledger::kept)];
      if (std::memcmp(&of_rank_0, &theirs, sizeof theirs) == 0) continue;
      throw InternalError(base::text("the ranks of ", name(), " called different collectives: the ",
                                     call + 1, "th was ", Ledger::describe(of_rank_0),
                                     " on rank 0, ", Ledger::describe(theirs), " on rank ", rank));
    }
  }
  throw InternalError(base::text("the ranks of ", name(),
                                 " called different collectives, more than ", Ledger::kept,
                                 " calls ago"));
}

void CommView::barrier() const {
  if (!Noted::wanted(*this)) return;
  const trace::Collective collective{"barrier", name().c_str(), 0};
  const Noted noted{*this, "barrier"};
  const trace::Region region{"barrier", trace::no_argument, trace::Category::wait};
  TRIREME_MPI(MPI_Barrier(state_->handle));
  noted.done();
}

namespace {

bool completed(MPI_Request& request) {
  int done = 0;
  TRIREME_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
  return done != 0;
}

}  // namespace

void wait_until(const char* what, const std::function<bool()>& done) {
  if (done()) return;
  const trace::Collective collective{what, "its mailbox", 0};
  const trace::Region region{"wait for other ranks", trace::no_argument, trace::Category::wait};
  sleep_until(done, [] { return false; });
}

void CommView::sleeping_barrier(const std::function<bool()>& meanwhile) const {
  if (!Noted::wanted(*this)) return;
  const trace::Collective collective{"barrier", name().c_str(), 0};
  const Noted noted{*this, "sleeping_barrier"};
  const trace::Region region{"wait for other ranks", trace::no_argument, trace::Category::wait};
  MPI_Request request = MPI_REQUEST_NULL;
  TRIREME_MPI(MPI_Ibarrier(state_->handle, &request));
  sleep_until([&] { return completed(request); }, meanwhile);
  noted.done();
}

void CommView::sleeping_all_gather_in_place(void* data, int bytes) const {
  if (!Noted::wanted(*this)) return;
  const trace::Collective collective{"all_gather", name().c_str(), bytes};
  const Noted noted{*this, "sleeping_all_gather", bytes};
  MPI_Request request = MPI_REQUEST_NULL;
  TRIREME_MPI(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, bytes, MPI_BYTE,
                             state_->handle, &request));
  sleep_until([&] { return completed(request); }, [] { return false; });
  noted.done();
}

void CommView::broadcast(void* data, int64_t count, DType type, int root) const {
  if (count == 0 || !Noted::wanted(*this)) return;
  const trace::Collective collective{"broadcast", name().c_str(), bytes_of(count, type)};
  const Noted noted{*this, "broadcast", count, static_cast<int>(type), root};
  in_pieces(data, count, type, [&](void* piece, int n) {
    TRIREME_MPI(MPI_Bcast(piece, n, to_mpi(type), root, state_->handle));
  });
  noted.done();
}

void CommView::all_reduce(void* data, int64_t count, DType type, Op op) const {
  if (count == 0 || !Noted::wanted(*this)) return;
  const trace::Collective collective{"all_reduce", name().c_str(), bytes_of(count, type)};
  const Noted noted{*this, "all_reduce", count, static_cast<int>(type) * 8 + static_cast<int>(op)};
  in_pieces(data, count, type, [&](void* piece, int n) {
    TRIREME_MPI(
        MPI_Allreduce(MPI_IN_PLACE, piece, n, to_mpi(type), to_mpi(op, type), state_->handle));
  });
  noted.done();
}

void CommView::all_gather_in_place(void* data, int64_t count, DType type) const {
  if (count == 0 || !Noted::wanted(*this)) return;
  const trace::Collective collective{"all_gather", name().c_str(), bytes_of(count, type)};
  const Noted noted{*this, "all_gather", count, static_cast<int>(type)};
  if (count <= max_count) {
    TRIREME_MPI(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, static_cast<int>(count),
                              to_mpi(type), state_->handle));
    noted.done();
    return;
  }
  // Pieces of a rank's slice are not adjacent across ranks: one broadcast per rank keeps every
  // count an int.
  auto* bytes = static_cast<std::byte*>(data);
  for (int root = 0; root < size_; ++root) {
    broadcast(bytes + root * count * static_cast<int64_t>(size_of(type)), count, type, root);
  }
  noted.done();
}

namespace {

std::vector<std::string> cut(const std::string& packed, std::span<const int64_t> sizes) {
  std::vector<std::string> parts;
  parts.reserve(sizes.size());
  size_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back(packed.substr(begin, static_cast<size_t>(size)));
    begin += static_cast<size_t>(size);
  }
  return parts;
}

}  // namespace

std::vector<std::string> CommView::all_gather(std::string_view mine) const {
  if (!state_) return {std::string(mine)};
  const trace::Collective collective{"all_gather", name().c_str(),
                                     static_cast<int64_t>(mine.size())};
  const auto sizes = gather_values(static_cast<int64_t>(mine.size()));
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  if (total > max_count) {
    std::vector<std::string> parts;
    for (int root = 0; root < size_; ++root) {
      parts.push_back(broadcast(rank_ == root ? std::string(mine) : std::string{}, root));
    }
    return parts;
  }
  std::vector<int> counts(sizes.begin(), sizes.end());
  std::vector<int> offsets(counts.size(), 0);
  std::partial_sum(counts.begin(), counts.end() - 1, offsets.begin() + 1);
  std::string packed(static_cast<size_t>(total), '\0');
  TRIREME_MPI(MPI_Allgatherv(mine.data(), counts[static_cast<size_t>(rank_)], MPI_BYTE,
                             packed.data(), counts.data(), offsets.data(), MPI_BYTE,
                             state_->handle));
  return cut(packed, sizes);
}

std::vector<std::string> CommView::gather(std::string_view mine, int root) const {
  if (!state_) return {std::string(mine)};
  const trace::Collective collective{"gather", name().c_str(), static_cast<int64_t>(mine.size())};
  const auto sizes = gather_values(static_cast<int64_t>(mine.size()));
  if (rank_ != root) {
    send(mine.data(), static_cast<int64_t>(mine.size()), root, Tag::gather);
    return {};
  }
  std::vector<std::string> parts(static_cast<size_t>(size_));
  for (int from = 0; from < size_; ++from) {
    auto& part = parts[static_cast<size_t>(from)];
    if (from == root) {
      part = mine;
      continue;
    }
    part.resize(static_cast<size_t>(sizes[static_cast<size_t>(from)]));
    receive(part.data(), static_cast<int64_t>(part.size()), from, Tag::gather);
  }
  return parts;
}

std::string CommView::broadcast(std::string content, int root) const {
  if (!state_) return content;
  const trace::Collective collective{"broadcast", name().c_str(),
                                     static_cast<int64_t>(content.size())};
  const int64_t size = broadcast_value(static_cast<int64_t>(content.size()), root);
  content.resize(static_cast<size_t>(size));
  broadcast(content.data(), size, DType::u8, root);
  return content;
}

std::vector<std::string> CommView::all_to_all(const std::vector<std::string>& to) const {
  EXPECT(to.size() == static_cast<size_t>(size_));
  if (!state_) return to;
  const trace::Collective collective{"all_to_all", name().c_str(), 0};
  std::vector<int64_t> out(to.size());
  std::vector<int64_t> in(to.size());
  std::transform(to.begin(), to.end(), out.begin(),
                 [](const std::string& s) { return static_cast<int64_t>(s.size()); });
  const Noted noted{*this, "all_to_all"};
  TRIREME_MPI(MPI_Alltoall(out.data(), 1, MPI_INT64_T, in.data(), 1, MPI_INT64_T, state_->handle));
  noted.done();
  std::vector<std::string> from(to.size());
  std::vector<Request> pending;
  for (int peer = 0; peer < size_; ++peer) {
    const auto p = static_cast<size_t>(peer);
    if (peer == rank_) {
      from[p] = to[p];
      continue;
    }
    from[p].resize(static_cast<size_t>(in[p]));
    if (in[p] > 0) pending.push_back(receive_begin(from[p].data(), in[p], peer, Tag::all_to_all));
    if (out[p] > 0) pending.push_back(send_begin(to[p].data(), out[p], peer, Tag::all_to_all));
  }
  for (auto& request : pending) request.wait();
  return from;
}

CommView::State::~State() {
  if (!owned) return;
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized) MPI_Comm_free(&handle);
}

Comm::~Comm() = default;

Comm Comm::split(const CommView& parent, int colour, int key, const std::string& name) {
  Comm made;
  if (!parent.state_) return made;
  const trace::Collective collective{"split", parent.name().c_str(), 0};
  const CommView::Noted noted{parent, "split"};
  MPI_Comm handle = MPI_COMM_NULL;
  TRIREME_MPI(
      MPI_Comm_split(parent.state_->handle, colour < 0 ? MPI_UNDEFINED : colour, key, &handle));
  noted.done();
  if (handle == MPI_COMM_NULL) return made;
  TRIREME_MPI(MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN));
  TRIREME_MPI(MPI_Comm_set_name(handle, name.substr(0, MPI_MAX_OBJECT_NAME - 1).c_str()));
  made.view_.state_ = std::make_shared<CommView::State>(handle, name, true);
  TRIREME_MPI(MPI_Comm_rank(handle, &made.view_.rank_));
  TRIREME_MPI(MPI_Comm_size(handle, &made.view_.size_));
  return made;
}

Comm Comm::duplicate(const CommView& parent, const std::string& name) {
  return split(parent, 0, parent.rank(), name);
}

Comm Comm::subset(const CommView& parent, std::span<const int> ranks, const std::string& name) {
  const auto found = std::find(ranks.begin(), ranks.end(), parent.rank());
  const bool member = found != ranks.end();
  return split(parent, member ? 0 : -1, member ? static_cast<int>(found - ranks.begin()) : 0, name);
}

}  // namespace trireme::comm
