#%% Each of these scripts ends with the start of a program; they are parted by such lines.
#%%
A=(1 "2 3" x); A+=(4); A[1]=9; torchrun t.py --x "${A[@]}" ${#A[@]} ${A[0]} "${A[*]}"
#%%
A=(); A+=(--y 1); [ 1 = 1 ] && A+=(--z); torchrun t.py --x "${A[@]}"
#%%
declare -A M=([7b]=32 [13b]="40 x"); M[70b]=80; K=13b; torchrun t.py --x ${M[$K]} ${M[70b]}
#%%
S=7b; case "$S" in 13b|70*) L=1;; "7b") L=2;; *) L=3;; esac; torchrun t.py --x $L
#%%
S=v2; case $S in v[12]) L=1 ;& v9) L=$L.2 ;; *) L=3 ;; esac; torchrun t.py --x $L
#%%
CMD="torchrun t.py --x 1 --y '2 3'"; eval "$CMD 2>&1 | cat"
#%%
A="--x 1"; eval torchrun t.py $A --y > /dev/stdout 2>&1
#%%
set -- --x 1 --y "2 3"; torchrun t.py "$@" $# $2
#%%
set -- a b c; shift; torchrun t.py --x $1 $#; 
#%%
for a in 1 2 3; do A="$A --l$a"; done; torchrun t.py --x $A
#%%
for a in {1..3} x{a,b}; do A="$A $a"; done; torchrun t.py --x $A
#%%
for ((i = 0; i < 4; i++)); do A+=" $((i * i))"; done; torchrun t.py --x $A
#%%
i=0; while [ $i -lt 3 ]; do i=$((i + 1)); [ $i = 2 ] && continue; A+=,$i; done
torchrun t.py --x $A
#%%
until (( i >= 3 )); do (( i += 2 )); done; torchrun t.py --x $i
#%%
f() { local a=$1; b=$((a * 2))
torchrun t.py --x "$@"; }; a=9; f 4 "5 6"
torchrun t.py --x $a $b
#%%
f() { if [ $1 = 1 ]; then return; fi; A=2; }; A=1; f 1; torchrun t.py --x $A
#%%
: "${X:=4}"; torchrun t.py --x $X ${Y:-5} ${X:+6} ${Z:+7} "${Z:-}" ${Z-8}
#%%
X=a.b.c
torchrun t.py --x ${X%.*} ${X%%.*} ${X#*.} ${X##*.} ${X/b/z} ${X//./-} ${X:2:1} ${X: -1}
#%%
X=abC; torchrun t.py --x ${X^^} ${X,,} ${X^} ${#X}; V=X; torchrun t.py --x ${!V} ${X/#ab/z}
#%%
torchrun t.py --x $((7 / 2)) $((-7 / 2)) $((-7 % 3)) $((1 << 4)) $((2 ** 3 ** 2)) $((3 > 2 ? 5 : 6))
#%%
N=3; torchrun t.py --x $((N * (N + 1) - ${N}00 / 7)) $[N + 1] $((0x10 + 010)) $((!N || 0))
#%%
let A=2*3 B=A+1; ((C = A > B ? A : B)); torchrun t.py --x $A $B ${C-0}
#%%
A="a  b"; torchrun t.py --x $A "$A" '$A' x"$A"y $'a\tb' a\ b ""
#%%
E=; torchrun t.py --x $E "$E" ${E}z
#%%
A=1; ( A=2; torchrun t.py --x $A ); torchrun t.py --x $A; A=3 | cat; torchrun t.py --x $A
#%%
torchrun t.py \
  --x 1 \
  --y 2 | tee /dev/null
#%%
A=1; { A=2; }; [ $A = 2 ] && { B=3; C=4; } || B=5; torchrun t.py --x $B $C
#%%
[ 1 = 2 ] && A=1 || A=2; [ 1 = 1 ] || A=3; torchrun t.py --x $A
#%%
cat > /dev/null <<EOF
--no 1 'it is
EOF
torchrun t.py --x 1 <<< 'y z' # --no
#%%
export A=1 B="2 3"; declare -i N=4; readonly R=5; torchrun t.py --x $A "$B" $N $R
#%%
A=1 B=2; unset A; torchrun t.py --x ${A:-none} $B
#%%
srun bash -c "torchrun t.py --x 1 --y '2 3'"
#%%
torchrun t.py --x $(echo 1 2) "$(echo a  b)" $(seq 3) `echo 4` $(expr 2 + 3)
#%%
if [ 1 = 2 ]; then A=1; elif [[ a == a ]]; then A=2; else A=3; fi
torchrun t.py --x $A; exit 0
torchrun t.py --x 9
#%%
A=x; A+=y; A+="z"; torchrun t.py --x $A; B=(a); B+=(b c); torchrun t.py --x ${B[-1]} ${!B[@]}
#%%
A=("--x 1" --y)
torchrun t.py ${A[*]}; for a in "${A[@]}"; do L=$a; done
torchrun t.py --x ${L#--}
#%%
while true; do A=1; break; done; torchrun t.py --x $A
#%%
function f { A=$((A + 1)); }; A=0; f; f; torchrun t.py --x $A
#%%
printf -v A "%s" 4; A=5; torchrun t.py --x $A; ls >/dev/null && torchrun t.py --x 2
#%%
if ! false && true; then A=1; fi; time torchrun t.py --x $A 2>/dev/null
#%%
A=8; B="$A"; C='$A'; D="'$A'"; torchrun t.py --x "$B" "$C" "$D" "\$A" \$A "a\b"
#%%
A=[1,2]; torchrun t.py --x=$A --y={a} --z="([0]*3+[1]*4)" '--w=a b'
#%%
A=(a b c d); torchrun t.py --x "${A[@]:1:2}" "${A[@]:2}" ${A[@]: -1} "${A[@]/#/--}" "${A[@]/%/;}"
#%%
set -- p q r; torchrun t.py --x "${@:2}" "${@:1:1}" "${*}"
#%%
A=(1 2 3); IFS=,; torchrun t.py --x "${A[*]}"; unset IFS; B="${A[*]}"; torchrun t.py --x $B
#%%
A=1,2,3; IFS=,; for a in $A; do B=$B-$a; done; torchrun t.py --x "$B" $A
#%%
f() { local IFS=:; echo; A=$1; shift; B="$*"; }; f 1 2 3; torchrun t.py --x $A $B
#%%
A='a*b'; torchrun t.py --x "${A%\**}" "${A#a}"
#%%
A="x y"; case $A in "x y") B=1;; esac; [[ $A == x\ y ]] && C=1; torchrun t.py --x $B $C
#%%
i=5; torchrun t.py --x $((i++)) $i $((++i)) $((i--)) $((i += 2)) $((i > 5 ? i : 0)) $(( (i, 3) ))
#%%
for a in {a,b}{1,2} l{1..3}x {01..10..3} {d..a} {1,{2,3}}z {x} a{b "{a,b}" p{,s}; do A="$A $a"; done
torchrun t.py --x $A
#%%
P=ab N=3; A=({1..4}); torchrun t.py --x ${P}{1,2} {1..$N} {"a b",c}d a}{b,c}} {a,{b,c} ${#A[@]}
#%%
declare -i A=2; A+=3; declare -i B; B="2*3"; f() { local -i n=$1+1; C=$n; }; f 4; n=1+1
declare -u D=x D+=y; typeset -l E=AB; torchrun t.py --x $A $B $C $n $D $E
#%%
A=(a b c); unset A[1] 'A[9]'; unset B; torchrun t.py --x "${A[@]}" ${#A[@]} ${B-none}
#%%
for i in 1 2 3; do for j in a b; do [ $i = 2 ] && break 2; A+=$i$j; done; done
for i in 1 2 3; do for j in a b; do [ $i = 2 ] && continue 2; B+=$i$j; done; done
torchrun t.py --x $A $B
#%%
f() { return 1; }; g() { return 0; }; f && A=1 || A=2; g && B=1 || B=2; if f; then C=1; fi
torchrun t.py --x $A $B ${C-0}
#%%
shopt -s nocasematch; case ABC in ab*) A=1;; esac; [[ X == x ]] && B=1; [ X = x ] && C=1
shopt -u nocasematch; [[ X == x ]] && D=1; torchrun t.py --x $A $B ${C-0} ${D-0}
#%%
A=1; A=2 & wait; f() ( A=3 ); f; torchrun t.py --x $A & wait
#%%
X=a/b; A=1; bash -c 'A=2'; torchrun t.py --x ${X////-} ${X//\//-} ${X/\//} ${X//b/c} ${X/#a/z} $A
