/* SPDX-License-Identifier: Apache-2.0 */
/* Sum over the ranks, residual add, RMSNorm and a rider in one kernel. Blocks that take rows, then the rider's blocks.
 *
 * A rank pushes its partial sums into the workspaces of the others, in the memory of their devices, and waits for
 * theirs in its own. The data is its own flag: a buffer is full of EMPTY words before, and a word that is not EMPTY has
 * arrived. Words are compared as bits. EMPTY is the NaN of all ones, in f32 and twice in bf16; no arithmetic of the
 * device makes it (its NaN is 0x7fffffff, in bf16 0x7fff), and where memory holds it, INSTEAD is sent, a NaN too. A sum
 * with a NaN in it is the device's own NaN whatever the NaN was, so no bit of a result changes.
 *
 * One shot: every rank sends each row to all others and adds up what it gets. Two steps: row i is added up by rank
 * i % ranks, which sends r, the sum with the residual, rounded, to the others. Both add in f32, rank 0 first, then 1
 * and so on, so the bits of a row depend on nothing but its partial sums, and are the same on all ranks.
 *
 * Three buffers are taken in turn. Which is next is kept in device memory, so that captured graphs replay. While launch
 * e runs on a rank, the others are in e - 1, e or e + 1: they cannot end e + 1 without what this rank sends in its
 * e + 1. So nobody touches the buffer of launch e - 1, which is that of e + 2, and launch e makes as much of it EMPTY
 * as launch e - 1 has used, whatever the rows of either.
 *
 * Blocks wait for blocks of the same row on other devices. No more are launched than the device holds at once, each
 * goes through its rows in order, and no row waits for another one. Where ranks or groups share a device, each has its
 * share of the multiprocessors, so that all are there together, and no kernel starts before the end of a collective
 * before it: kernels that wait must not take the room of those that are waited for. */
#include "backend/cuda/comm/collective.h"

#include "backend/cuda/comm/cluster.cuh"
#include "backend/cuda/norm/norm.cuh"
#include "backend/cuda/norm/norm.h"

namespace {

enum : uint32_t { EMPTY = 0xffffffffu, INSTEAD = 0x7fffffffu };
enum { PATIENCE = 256 }; /* polls between two looks at the clock */

struct reduce_params {
    norm_params n;
    unsigned char *workspace[PZ_MAX_RANKS];
    uint32_t *missing;
    unsigned long long timeout_ns;
    uint32_t buffer_bytes;
    uint32_t row_stride, rank_stride; /* bytes from part to part of a buffer */
    uint32_t sums_at;                 /* two steps: where in a buffer the sums begin */
    uint32_t use;                     /* units of 16 bytes of a buffer that this launch uses */
    int rank, ranks, gathered;
    int rows, parts; /* at the same time; blocks that share one, a cluster */
    bool carries;    /* the rider has no blocks of its own: those of the rows zero while they wait */
};

__device__ __forceinline__ pz_group_header *header_of(const reduce_params &p, int rank) {
    return (pz_group_header *)p.workspace[rank];
}

/* ---- words that other devices write ---- */
__device__ __forceinline__ uint4 poll16(const void *p) {
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ __forceinline__ void push16(void *p, uint4 v) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ uint32_t poll4(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void push4(uint32_t *p, uint32_t v) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ uint32_t sendable(uint32_t w) {
    return w == EMPTY ? INSTEAD : w;
}
__device__ __forceinline__ bool arrived(uint4 v) {
    return v.x != EMPTY && v.y != EMPTY && v.z != EMPTY && v.w != EMPTY;
}

/* Eight elements take this many bytes. */
template <int Elem> struct bytes8 { static constexpr int N = sizeof(words8<Elem>), WORDS = N / sizeof(uint4); };

template <int Elem> __device__ __forceinline__ void make_sendable(words8<Elem> &w) {
#pragma unroll
    for (int i = 0; i < bytes8<Elem>::WORDS; i++)
        w.at[i] = make_uint4(sendable(w.at[i].x), sendable(w.at[i].y), sendable(w.at[i].z), sendable(w.at[i].w));
}
template <int Elem> __device__ __forceinline__ void push8(unsigned char *p, const words8<Elem> &w) {
#pragma unroll
    for (int i = 0; i < bytes8<Elem>::WORDS; i++) push16((uint4 *)p + i, w.at[i]);
}
template <int Elem> __device__ __forceinline__ void poll8(words8<Elem> &w, const unsigned char *p) {
#pragma unroll
    for (int i = 0; i < bytes8<Elem>::WORDS; i++) w.at[i] = poll16((const uint4 *)p + i);
}
template <int Elem> __device__ __forceinline__ bool arrived8(const words8<Elem> &w) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < bytes8<Elem>::WORDS; i++) all = all && arrived(w.at[i]);
    return all;
}
template <int Elem> __device__ __forceinline__ void values8(float (&v)[8], const words8<Elem> &w) {
    value8<Elem>(v, w, pz_matrix{}, 0, 0);
}
/* Rounds v and gives the words that hold it. */
template <int Elem> __device__ __forceinline__ words8<Elem> round8(float (&v)[8]) {
    words8<Elem> w;
    if constexpr (Elem == PZ_ELEM_BF16) {
        w.at[0] = pz_pack_bf16(v);
    } else {
        w.at[0] =
            make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
        w.at[1] =
            make_uint4(__float_as_uint(v[4]), __float_as_uint(v[5]), __float_as_uint(v[6]), __float_as_uint(v[7]));
    }
    return w;
}

/* ---- waiting ---- */
struct patience {
    unsigned long long since; /* the first wait of the launch */
    uint32_t polls, missing;  /* missing: the ranks that this thread has waited for in vain */
    bool over;                /* do not wait: something has failed, and what is not there counts as NaN */
};

__device__ __forceinline__ void look_at_clock(const reduce_params &p, uint32_t missing, patience &w) {
    if (++w.polls % PATIENCE) return;
    const unsigned long long now = nanoseconds();
    if (w.since == 0) w.since = now;
    w.over = poll4(&header_of(p, p.rank)->missing) != 0;
    if (w.over || now - w.since < p.timeout_ns) return;
    w.over = true;
    w.missing = missing;
}

/* After a wait that was given up: tells the host, and if it is not known yet every rank, so that all come to their end.
 */
__device__ __noinline__ void report(const reduce_params &p, uint32_t missing) {
    pz_group_header *own = header_of(p, p.rank);
    uint32_t known = missing ? atomicCAS(&own->missing, 0u, missing) : poll4(&own->missing);
    if (!known) {
        known = missing;
        for (int r = 0; r < p.ranks; r++)
            if (r != p.rank) push4(&header_of(p, r)->missing, missing);
    }
    push4(p.missing, known);
}

/* The other ranks in order: 0, 1, ... without this one. */
__device__ __forceinline__ int other_rank(const reduce_params &p, int i) {
    return i < p.rank ? i : i + 1;
}

/* The vectors of a thread. Beyond the row the last one is taken once more and not used: branches would cost registers.
 */
template <int NV> struct vectors {
    uint32_t first;    /* number of vector 0 in the row */
    uint32_t rest[NV]; /* from it to the others */
    uint32_t last;     /* from it to the last one of the warp */
    bool in[NV];       /* not beyond the row */

    template <typename Row> __device__ __forceinline__ void begin(const Row &row, int hidden) {
        const int end = hidden - 8;
        first = min(row.column(0), end) / 8;
#pragma unroll
        for (int i = 0; i < NV; i++) {
            rest[i] = i ? min(row.column(i), end) / 8 - first : 0;
            in[i] = row.column(i) < hidden;
        }
        last = min(row.column(NV - 1) | 31 * 8, end) / 8 - first;
    }
};

/* Address of vector number `vector` of a row. */
template <int Elem> __device__ __forceinline__ unsigned char *place(const pz_matrix &a, int row, uint32_t vector) {
    return (unsigned char *)a.data + (row * a.ld + 8 * vector) * (bytes8<Elem>::N / 8);
}
/* An address that is worked out here and not where it is used. */
template <typename T> __device__ __forceinline__ void settle(T *&p) {
    asm volatile("" : "+l"(p));
}

/* ---- what other ranks have sent ---- */
/* All lanes of a warp poll a word of the last vector that others send with those of this warp: one sector, where their
 * own vectors would be sixteen. Few bytes leave the way to the cache to what arrives. */
template <int RANKS>
__device__ __forceinline__ void await_last(const reduce_params &p, const unsigned char *word, patience &w) {
    for (int o = 0; o < (RANKS == 2 ? 1 : p.ranks - 1); o++, word += p.rank_stride)
        while (poll4((const uint32_t *)word) == EMPTY && !w.over) look_at_clock(p, 1u << other_rank(p, o), w);
}

/* got[i][o]: vector `at + i` of a row from other rank o. `from`: vector 0 of this thread. */
template <int Elem, int N, int OTHERS, int NV>
__device__ __forceinline__ void collect(words8<Elem> (&got)[N][OTHERS], const reduce_params &p, const vectors<NV> &mine,
                                        const unsigned char *from, int at, patience &w) {
    for (;;) {
        uint32_t missing = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int o = 0; o < OTHERS; o++)
                if (o < p.ranks - 1)
                    poll8<Elem>(got[i][o], from +
                                               (OTHERS > 1 ? (p.gathered ? other_rank(p, o) : o) * p.rank_stride : 0) +
                                               mine.rest[at + i] * bytes8<Elem>::N);
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int o = 0; o < OTHERS; o++)
                if (o < p.ranks - 1 && !arrived8<Elem>(got[i][o])) missing |= 1u << other_rank(p, o);
        if (missing == 0 || w.over) return;
        look_at_clock(p, missing, w);
    }
}

/* ---- a row ---- */
template <int Elem> __device__ __forceinline__ words8<Elem> load_at(const unsigned char *p) {
    words8<Elem> w;
#pragma unroll
    for (int i = 0; i < bytes8<Elem>::WORDS; i++) w.at[i] = pz_load16((const uint4 *)p + i);
    return w;
}
template <int Elem> __device__ __forceinline__ void store_at(unsigned char *p, const words8<Elem> &w) {
#pragma unroll
    for (int i = 0; i < bytes8<Elem>::WORDS; i++)
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p + 16 * i), "r"(w.at[i].x), "r"(w.at[i].y),
                     "r"(w.at[i].z), "r"(w.at[i].w)
                     : "memory");
}

template <int Payload>
__device__ __forceinline__ words8<Payload> own8(const reduce_params &p, const unsigned char *at, int row, int col) {
    words8<Payload> w = load_at<Payload>(at);
    if constexpr (Payload == PZ_ELEM_F32) {
        if (p.n.x.elem == PZ_ELEM_FIXED) {
            float v[8];
            value8<PZ_ELEM_FIXED>(v, *(words8<PZ_ELEM_FIXED> *)&w, p.n.x, pz_load_f32(p.n.x.x_norm + row), col);
            w = round8<PZ_ELEM_F32>(v);
        }
    }
    return w;
}

template <int Elem> __device__ __forceinline__ void add8(float (&v)[8], const words8<Elem> &w) {
    float part[8];
    values8<Elem>(part, w);
#pragma unroll
    for (int e = 0; e < 8; e++) v[e] = __fadd_rn(v[e], part[e]);
}

/* Rank 0 first, then 1, and so on. Of two ranks either may come first. */
template <int Payload, int RANKS>
__device__ __forceinline__ void add_up(float (&v)[8], const words8<Payload> &own,
                                       const words8<Payload> (&got)[RANKS - 1], const reduce_params &p) {
    if constexpr (RANKS == 2) {
        values8<Payload>(v, own);
        if (p.ranks == 2) add8<Payload>(v, got[0]);
    } else {
#pragma unroll
        for (int r = 0; r < RANKS; r++) {
            if (r >= p.ranks) continue;
            words8<Payload> w;
#pragma unroll
            for (int k = 0; k < bytes8<Payload>::WORDS; k++) {
                w.at[k] = r < RANKS - 1 && r < p.rank ? got[r < RANKS - 1 ? r : 0].at[k] : own.at[k];
                if (r > 0 && r > p.rank) w.at[k] = got[r > 0 ? r - 1 : 0].at[k];
            }
            if (r == 0)
                values8<Payload>(v, w);
            else
                add8<Payload>(v, w);
        }
    }
}

/* v[i]: the sum over the ranks of vector i. `from`: this thread's vector 0 of the first part of the row. */
template <int NV, int Payload, int RANKS>
__device__ __forceinline__ void sum_row(float (&v)[NV][8], const words8<Payload> (&own)[NV], const reduce_params &p,
                                        const vectors<NV> &mine, const unsigned char *from, patience &w) {
    constexpr int N = RANKS == 2 ? NV : 1; /* vectors at a time, as registers allow */
#pragma unroll
    for (int at = 0; at < NV; at += N) {
        words8<Payload> got[N][RANKS - 1];
        collect<Payload, N, RANKS - 1>(got, p, mine, from, at, w);
#pragma unroll
        for (int i = 0; i < N; i++) add_up<Payload, RANKS>(v[at + i], own[at + i], got[i], p);
    }
}

/* The place of this rank's part among those that rank `to` gets. */
__device__ __forceinline__ uint32_t own_part(const reduce_params &p, int to) {
    return (p.rank < to ? p.rank : p.rank - 1) * p.rank_stride;
}

/* Sends a vector to all other ranks: to byte `at` of their workspaces, a part to its place from there on. */
template <bool Part, int Elem>
__device__ __forceinline__ void push_to_all(const reduce_params &p, const words8<Elem> &w, uint32_t at) {
#pragma unroll 1
    for (int d = 1; d < p.ranks; d++) {
        const int to = p.rank + d < p.ranks ? p.rank + d : p.rank + d - p.ranks;
        push8<Elem>(p.workspace[to] + at + (Part ? own_part(p, to) : 0), w);
    }
}

/* Sends this rank's part of a row, which is made sendable, to all others, or in two steps to the owner of the row.
 * `there`: vector 0 of this thread in the workspace of the only other rank. */
template <int NV, int Payload, int RANKS, bool TWO_STEP>
__device__ __forceinline__ void send_row(const reduce_params &p, words8<Payload> (&part)[NV], const vectors<NV> &mine,
                                         unsigned char *there, uint32_t parts_at, int owner, bool together) {
#pragma unroll
    for (int i = 0; i < NV; i++) {
        make_sendable<Payload>(part[i]);
        const uint32_t to = parts_at + mine.rest[i] * bytes8<Payload>::N;
        if (!together || !mine.in[i]) continue;
        if (RANKS == 2 && (!TWO_STEP || owner != p.rank))
            push8<Payload>(there + to, part[i]);
        else if (!TWO_STEP)
            push_to_all<true, Payload>(p, part[i], to + mine.first * bytes8<Payload>::N);
        else if (owner != p.rank)
            push8<Payload>(p.workspace[owner] + to + mine.first * bytes8<Payload>::N + own_part(p, owner), part[i]);
    }
}

/* Two steps: what the owner of a row has summed up. */
template <int NV, int Elem>
__device__ __forceinline__ void receive_row(float (&v)[NV][8], const reduce_params &p, const vectors<NV> &mine,
                                            const unsigned char *from, int owner, patience &w) {
    words8<Elem> got[NV];
    for (;;) {
        bool all = true;
#pragma unroll
        for (int i = 0; i < NV; i++) poll8<Elem>(got[i], from + mine.rest[i] * bytes8<Elem>::N);
#pragma unroll
        for (int i = 0; i < NV; i++) all = all && arrived8<Elem>(got[i]);
        if (all || w.over) break;
        look_at_clock(p, 1u << owner, w);
    }
#pragma unroll
    for (int i = 0; i < NV; i++) values8<Elem>(v[i], got[i]);
}

/* Makes EMPTY again what the launch before this one has used of its buffer. */
__device__ __forceinline__ void empty_buffer(const reduce_params &p, uint32_t buffer, uint32_t used) {
    const uint32_t last = buffer ? buffer - 1 : PZ_GROUP_BUFFERS - 1, all = p.rows * p.parts * blockDim.x;
    uint4 *at = (uint4 *)(p.workspace[p.rank] + PZ_GROUP_HEADER + last * p.buffer_bytes);
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < used; i += all)
        at[i] = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY);
}

/* All threads of the block have `word`, and the last warp knows it: the others do not wait. */
__device__ __forceinline__ void all_have(uint32_t word) {
    const uint32_t barrier = 1 + (word >> 31); /* the instruction needs the word to have come; it is small */
    if (threadIdx.x >= blockDim.x - 32)
        asm volatile("barrier.cta.sync %0, %1;" ::"r"(barrier), "r"(blockDim.x) : "memory");
    else
        asm volatile("barrier.cta.arrive %0, %1;" ::"r"(barrier), "r"(blockDim.x) : "memory");
}

/* How many blocks of the launch had their head before this one. The last one leaves 0. */
__device__ __forceinline__ uint32_t arrive(pz_group_header *own, int blocks) {
    uint32_t before;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(&own->arrived), "r"(blocks - 1)
                 : "memory");
    return before;
}

/* ---- the norm ---- */
/* The weights of the norm, before the wait: in registers, as far as these allow it, else at hand. */
template <int NV> struct norm_weights {
    static constexpr bool EARLY = NV == 1;
    float early[EARLY ? NV : 1][8];

    __device__ __forceinline__ void begin(const norm_params &n, const vectors<NV> &mine) {
#pragma unroll
        for (int i = 0; i < NV; i++) {
            if constexpr (EARLY)
                weights8(early[i], n.w + 8 * (mine.first + mine.rest[i]));
            else
                fetch(n.w + 8 * (mine.first + mine.rest[i]));
        }
    }
    /* v, the sum of the ranks and the residual, becomes v * w. squares: of v; products: of v * w. */
    __device__ __forceinline__ void apply(float (&v)[NV][8], const norm_params &n, const vectors<NV> &mine,
                                          float (&squares)[NV], float (&products)[NV]) const {
#pragma unroll
        for (int i = 0; i < NV; i++) {
            float of[8];
            if constexpr (!EARLY) weights8(of, n.w + 8 * (mine.first + mine.rest[i]));
#pragma unroll
            for (int e = 0; EARLY && e < 8; e++) of[e] = early[i][e];
#pragma unroll
            for (int e = 0; e < 8; e++) {
                squares[i] += v[i][e] * v[i][e];
                v[i][e] *= of[e];
                products[i] += v[i][e] * v[i][e];
            }
            if (!mine.in[i]) squares[i] = products[i] = 0;
        }
    }
};

/* Rows whose norm is not known before they are stored, and among them those whose squares leave the range of f32. They
 * are few, and finished after all others: calls among these would cost registers. */
struct late_rows {
    uint32_t late[PZ_GROUP_ROWS / 32], wide[PZ_GROUP_ROWS / 32];
};

template <int NV, int Elem, typename Row>
__device__ __noinline__ void finish(const reduce_params &p, const late_rows *rows, const Row at) {
    __syncthreads();
    for (int row = blockIdx.x / p.parts; row < p.n.m; row += p.rows) {
        if (!(rows->late[row / 32] >> row % 32 & 1)) continue;
        if (rows->wide[row / 32] >> row % 32 & 1) wide_row<NV, Elem, Elem>(p.n, row, at);
        if (!p.n.x_norm) continue;
        const float norm = norm_after<NV, Elem>(p.n, row, at);
        if (at.leads()) p.n.x_norm[row] = norm;
    }
}

/* Stores y and x_norm of a row from its sums. false: finish does. */
template <int NV, int Elem, typename Row>
__device__ __forceinline__ bool scale_row(float (&v)[NV][8], const reduce_params &p, Row &at, const vectors<NV> &mine,
                                          float2 sum, unsigned char *y, int row, late_rows *rows) {
    const float scale = rsqrtf(sum.x * p.n.share + p.n.eps);
    const bool narrow = is_narrow(sum, scale);
#pragma unroll
    for (int i = 0; i < NV; i++) {
#pragma unroll
        for (int e = 0; e < 8; e++) v[i][e] *= scale;
        if (mine.in[i]) store_at<Elem>(y + mine.rest[i] * bytes8<Elem>::N, round8<Elem>(v[i]));
    }
    const float norm = norm_before<Elem>(sum.y, scale);
    const bool done = narrow && (norm != 0 || !p.n.x_norm);
    if (done && p.n.x_norm && at.leads()) p.n.x_norm[row] = norm;
    if (!done && threadIdx.x == 0) {
        rows->late[row / 32] |= 1u << row % 32;
        if (!narrow) rows->wide[row / 32] |= 1u << row % 32;
    }
    return done;
}

/* NV: vectors a thread. Payload: what partial sums are sent as, BF16 if x is, else F32. Elem: of res, r and y. RANKS:
 * at most. THREADS: of a block at most. */
template <int NV, int Payload, int Elem, int RANKS, int THREADS, bool TWO_STEP>
__global__ void __launch_bounds__(THREADS, 1) reduce(const __grid_constant__ reduce_params p) {
    __shared__ __align__(16) shared_sums sums;
    __shared__ late_rows late;
    const norm_params &n = p.n;
    const int blocks = p.rows * p.parts;
    if (!n.late) pz_trigger();
    if ((int)blockIdx.x >= blocks) {
        pz_wait();
        ride(n, blocks);
        return;
    }
    if (threadIdx.x < PZ_GROUP_ROWS / 32) late.late[threadIdx.x] = late.wide[threadIdx.x] = 0;
    cluster_row<NV> at;
    at.begin(&sums, p.parts);
    vectors<NV> mine;
    mine.begin(at, n.hidden);
    norm_weights<NV> weights;
    if (n.y.data) weights.begin(n, mine);
    int row = blockIdx.x / p.parts;
    const bool together = p.ranks > 1 && !p.gathered;
    pz_group_header *own = header_of(p, p.rank);
    unsigned char *x = place<Payload>(n.x, row, mine.first), *res = place<Elem>(n.res, row, mine.first);
    unsigned char *r = place<Elem>(n.r, row, mine.first), *y = place<Elem>(n.y, row, mine.first);
    unsigned char *here = p.workspace[p.rank] + mine.first * bytes8<Payload>::N, *there = here;
    if (RANKS == 2 && together) there = p.workspace[1 - p.rank] + mine.first * bytes8<Payload>::N;
    settle(x), settle(res), settle(r), settle(y), settle(here), settle(there), settle(own);
    /* every thread has a head of its own: one of the whole warp would be waited for before x is asked for */
    const pz_group_header *head_at = own + (n.m < 0 ? threadIdx.x : 0);
    settle(head_at);
    uint4 head = make_uint4(0, 0, 0, 0);
    uint32_t buffer = 0, before = 0;
    bool begins = together, finished = true;
    patience w = {};
    w.over = p.gathered;
    pz_touch(p);
    pz_wait();
    if (together) head = pz_load16(head_at);
    words8<Payload> part[NV];
    words8<Elem> add[NV];
    const auto load = [&](const unsigned char *x, const unsigned char *res) {
#pragma unroll
        for (int i = 0; i < NV; i++)
            part[i] = own8<Payload>(p, x + mine.rest[i] * bytes8<Payload>::N, row, 8 * (mine.first + mine.rest[i]));
        if (n.res.data)
#pragma unroll
            for (int i = 0; i < NV; i++) add[i] = load_at<Elem>(res + mine.rest[i] * bytes8<Elem>::N);
    };
    load(x, res); /* here, and not at the beginning of the loop: before it, constants are loaded for all rows */
#pragma unroll 1
    for (;;) {
        float v[NV][8];
        if (begins) {
            buffer = PZ_GROUP_HEADER + head.x * p.buffer_bytes;
            w.over = head.z != 0;
        }
        const int owner = TWO_STEP ? row % p.ranks : p.rank;
        const uint32_t parts_at = buffer + (TWO_STEP ? row / p.ranks : row) * p.row_stride;
        const uint32_t sum_at = buffer + p.sums_at + (row * (n.hidden / 8) + mine.first) * bytes8<Elem>::N;
        send_row<NV, Payload, RANKS, TWO_STEP>(p, part, mine, there, parts_at, owner, together);
        const unsigned char *from = here + parts_at;
        if (RANKS == 2 && p.gathered) from += other_rank(p, 0) * p.rank_stride;
        settle(from);
        if (begins) {
            all_have(head.x);
            if (threadIdx.x == blockDim.x - 1) before = arrive(own, blocks);
            empty_buffer(p, head.x, head.y);
            if (p.carries) ride(n, 0);
        } else if (p.carries && row < p.rows) {
            ride(n, 0);
        }
        begins = false;
        if (!TWO_STEP || owner == p.rank) {
            /* m is positive. Versions that do not look at it here, and differ in little else, took 0.3 us longer from
             * 16 rows on (nvcc 13.0); why is not known. */
            if (n.y.data && together && n.m > 0)
                await_last<RANKS>(p, from + mine.last * bytes8<Payload>::N + bytes8<Payload>::N - 4, w);
            sum_row<NV, Payload, RANKS>(v, part, p, mine, from, w);
#pragma unroll
            for (int i = 0; i < NV; i++) {
                if (n.res.data) add8<Elem>(v[i], add[i]);
                if (!TWO_STEP || w.over || !mine.in[i]) continue; /* nobody gets a sum that is not one */
                words8<Elem> sum = round8<Elem>(v[i]);
                make_sendable<Elem>(sum);
                push_to_all<false, Elem>(p, sum, sum_at + mine.rest[i] * bytes8<Elem>::N);
            }
        } else {
            receive_row<NV, Elem>(v, p, mine, p.workspace[p.rank] + sum_at, owner, w);
        }
        float squares[NV], products[NV];
#pragma unroll
        for (int i = 0; i < NV; i++) {
            const words8<Elem> sum = round8<Elem>(v[i]);
            if (mine.in[i]) store_at<Elem>(r + mine.rest[i] * bytes8<Elem>::N, sum);
            squares[i] = products[i] = 0;
        }
        if (n.y.data) {
            weights.apply(v, n, mine, squares, products);
            const float2 sum = at.sums(squares, products);
            finished &= scale_row<NV, Elem>(v, p, at, mine, sum, y, row, &late);
        }
        row += p.rows;
        if (row >= n.m) break;
        load(place<Payload>(n.x, row, mine.first), place<Elem>(n.res, row, mine.first));
        r = place<Elem>(n.r, row, mine.first), y = place<Elem>(n.y, row, mine.first);
    }
    if (!finished) finish<NV, Elem>(p, &late, at);
    if (together && w.over) report(p, w.missing);
    if (together && threadIdx.x == blockDim.x - 1 && before == (uint32_t)blocks - 1) {
        own->used = p.use;
        own->buffer = head.x + 1 < PZ_GROUP_BUFFERS ? head.x + 1 : 0;
    }
}

typedef void (*reduce_kernel)(const reduce_params);
/* The kernel of a shape, for partial sums in Payload, and r and y in Elem. */
template <int NV, int Payload, int Elem, int RANKS, int THREADS> reduce_kernel choose(bool two_step) {
    return two_step ? reduce<NV, Payload, Elem, RANKS, THREADS, true>
                    : reduce<NV, Payload, Elem, RANKS, THREADS, false>;
}
template <int Payload, int Elem, int RANKS> reduce_kernel choose(const pz_group_shape &s, bool two_step) {
    constexpr int MOST = PZ_GROUP_THREADS(1, RANKS), FEW = PZ_GROUP_THREADS(2, RANKS);
    return s.vectors == 2     ? choose<2, Payload, Elem, RANKS, FEW>(two_step)
           : s.vectors == 4   ? choose<4, Payload, Elem, RANKS, FEW>(two_step)
           : s.threads <= FEW ? choose<1, Payload, Elem, RANKS, FEW>(two_step)
                              : choose<1, Payload, Elem, RANKS, MOST>(two_step);
}
template <int Payload, int Elem> reduce_kernel choose(const pz_group_shape &s, int ranks, bool two_step) {
    return ranks <= 2 ? choose<Payload, Elem, 2>(s, two_step) : choose<Payload, Elem, PZ_MAX_RANKS>(s, two_step);
}
reduce_kernel choose(const pz_group_shape &s, pz_elem x, pz_elem r, int ranks, bool two_step) {
    if (x == PZ_ELEM_BF16)
        return r == PZ_ELEM_BF16 ? choose<PZ_ELEM_BF16, PZ_ELEM_BF16>(s, ranks, two_step)
                                 : choose<PZ_ELEM_BF16, PZ_ELEM_F32>(s, ranks, two_step);
    return r == PZ_ELEM_BF16 ? choose<PZ_ELEM_F32, PZ_ELEM_BF16>(s, ranks, two_step)
                             : choose<PZ_ELEM_F32, PZ_ELEM_F32>(s, ranks, two_step);
}

reduce_params make_params(const pz_norm_args *a, const pz_group_view *g, int first, int m, bool two_step,
                          const pz_group_shape &shape) {
    reduce_params p = {};
    p.n.x = pz_matrix_from_row(a->x, first), p.n.res = pz_matrix_from_row(a->res, first);
    p.n.y = pz_matrix_from_row(a->y, first), p.n.r = pz_matrix_from_row(a->r, first);
    p.n.w = a->w, p.n.x_norm = a->x_norm ? a->x_norm + first : nullptr;
    p.n.eps = a->eps, p.n.share = 1.0f / (float)a->hidden, p.n.m = m, p.n.hidden = a->hidden;
    p.n.late = a->late || g->share > 1;
    if (first == 0 && a->zero) p.n.zero = (uint4 *)a->zero, p.n.zero_words = (int64_t)(a->zero_bytes / 16);
    memcpy(p.workspace, g->workspace, sizeof p.workspace);
    p.missing = g->missing, p.buffer_bytes = (uint32_t)g->buffer_bytes;
    p.timeout_ns = 1000000ull * (unsigned)g->timeout_ms;
    p.rank = g->alone ? 0 : g->rank, p.ranks = g->alone ? 1 : g->ranks;
    p.gathered = g->gathered;
    const uint32_t part = (uint32_t)(a->hidden * pz_elem_bytes(pz_group_payload(a->x.elem)));
    p.row_stride = g->gathered ? part : part * (p.ranks - 1);
    p.rank_stride = g->gathered ? part * m : part;
    const int64_t parts = two_step ? (m + p.ranks - 1) / p.ranks : m;
    p.sums_at = (uint32_t)parts * p.row_stride;
    p.use = (p.sums_at + (two_step ? (uint32_t)m * a->hidden * pz_elem_bytes(a->r.elem) : 0)) / 16;
    p.rows = shape.rows, p.parts = shape.parts;
    return p;
}

} // namespace

extern "C" int64_t pz_group_buffer_bytes(const pz_group_view *g, int hidden) {
    int64_t one_shot = (int64_t)g->one_shot * (g->ranks - 1), two_step = 2 * PZ_GROUP_ROWS + g->ranks;
    return (one_shot > two_step ? one_shot : two_step) * hidden * 4;
}

extern "C" pz_status pz_cuda_reduce_norm(const pz_norm_args *a, const pz_group_view *g, pz_error *err) {
    pz_norm_args checked = *a;
    if (!a->y.data) checked.y = a->r, checked.w = (const float *)a->r.data;
    PZ_TRY(pz_cuda_norm_check(&checked, err));
    if (!a->r.data) return pz_fail(err, PZ_E_INVAL, "fused_allreduce_rmsnorm: r must be given");
    if (g->gathered && !g->alone && a->m > PZ_GATHERED_ROWS)
        return pz_fail(err, PZ_E_INTERNAL, "fused_allreduce_rmsnorm: %d rows are gathered, at most %d", a->m,
                       PZ_GATHERED_ROWS);
    if (g->one_shot > PZ_GROUP_ROWS || (!g->alone && pz_group_buffer_bytes(g, a->hidden) > g->buffer_bytes))
        return pz_fail(err, PZ_E_INTERNAL, "fused_allreduce_rmsnorm: rows of %d need buffers of %lld bytes, not %lld",
                       a->hidden, (long long)pz_group_buffer_bytes(g, a->hidden), (long long)g->buffer_bytes);
    int units, major;
    PZ_TRY(pz_cuda_attribute(cudaDevAttrMultiProcessorCount, &units, err));
    PZ_TRY(pz_cuda_attribute(cudaDevAttrComputeCapabilityMajor, &major, err));
    for (int first = 0; first < a->m; first += PZ_GROUP_ROWS) {
        const int m = a->m - first < PZ_GROUP_ROWS ? a->m - first : PZ_GROUP_ROWS;
        const bool two_step = m > g->one_shot && !g->gathered;
        const pz_group_shape shape = pz_group_shape_of(a->hidden, g->ranks, m, units / g->share, major >= 9);
        const int blocks = shape.rows * shape.parts;
        reduce_params p = make_params(a, g, first, m, two_step, shape);
        const int wanted = p.n.zero_words ? pz_rider_of(blocks, (int64_t)a->zero_bytes, units).blocks : 0;
        const int rider = pz_group_rider(blocks, wanted, units);
        p.carries = wanted > 0 && rider == 0;
        const dim3 grid(blocks + (int)pz_align_up(rider, shape.parts));
        PZ_TRY(pz_cuda_launch_clusters(choose(shape, a->x.elem, a->r.elem, g->ranks, two_step), grid,
                                       dim3(shape.threads), shape.parts, 0, (cudaStream_t)a->stream,
                                       a->dependent != 0 || first > 0, "fused_allreduce_rmsnorm", err, p));
    }
    return PZ_OK;
}
