"""Short texts of our own in eight languages, each with ten questions in that language and words of the sentence that answers."""

from __future__ import annotations

FACTS: dict[str, list[tuple[str, str, str]]] = {
    "de": [
        (
            "Der Leuchtturm wurde im Jahr 1874 von Fischern errichtet.",
            "Wer hat den Leuchtturm errichtet?",
            "von Fischern",
        ),
        (
            "Die Bibliothek schließt donnerstags schon um vier Uhr.",
            "Wann schließen die Bibliotheken donnerstags?",
            "um vier Uhr",
        ),
        (
            "Frau Brandt züchtet seit zwanzig Jahren schwarze Tulpen.",
            "Welche Tulpe züchtet Frau Brandt?",
            "schwarze Tulpen",
        ),
        (
            "Der Schlüssel zum Keller hängt hinter der Standuhr.",
            "Wo hängen die Schlüssel zum Keller?",
            "hinter der Standuhr",
        ),
        ("Im Brunnen fand man drei römische Münzen.", "Was fand man im Brunnen?", "römische Münzen"),
        ("Das Kloster verkauft Honig und Kerzen.", "Was verkaufen die Klöster?", "Honig und Kerzen"),
        ("Die Fähre nach Norden braucht neunzig Minuten.", "Wie lange braucht die Fähre?", "neunzig Minuten"),
        (
            "Der Bürgermeister heißt Emil Kröger und spielt Geige.",
            "Welches Instrument spielt der Bürgermeister?",
            "Geige",
        ),
        ("Der Käse reift acht Monate in einer Höhle.", "Wo reift der Käse?", "einer Höhle"),
        ("Wegen des Hochwassers wurde die Brücke gesperrt.", "Warum wurde die Brücke gesperrt?", "Hochwassers"),
    ],
    "fr": [
        ("Le phare a été construit par des pêcheurs en 1874.", "Qui a construit le phare ?", "des pêcheurs"),
        (
            "La bibliothèque ferme le jeudi à seize heures.",
            "Quand ferment les bibliothèques le jeudi ?",
            "seize heures",
        ),
        ("Madame Roche cultive des tulipes noires.", "Quelle tulipe cultive madame Roche ?", "tulipes noires"),
        ("La clé de la cave est derrière l'horloge.", "Où sont les clés de la cave ?", "derrière l'horloge"),
        ("On a trouvé trois pièces romaines dans le puits.", "Qu'a-t-on trouvé dans le puits ?", "pièces romaines"),
        ("Le monastère vend du miel et des bougies.", "Que vendent les monastères ?", "miel et des bougies"),
        (
            "La traversée en ferry dure quatre-vingt-dix minutes.",
            "Combien de temps dure la traversée ?",
            "quatre-vingt-dix",
        ),
        ("Le maire s'appelle Émile Garnier et joue du violon.", "De quel instrument joue le maire ?", "violon"),
        ("Le fromage mûrit huit mois dans une grotte.", "Où mûrit le fromage ?", "une grotte"),
        ("Le pont est fermé à cause de l'inondation.", "Pourquoi le pont est-il fermé ?", "inondation"),
    ],
    "es": [
        ("El faro fue construido por pescadores en 1874.", "¿Quién construyó los faros?", "pescadores"),
        ("La biblioteca cierra los jueves a las cuatro.", "¿Cuándo cierran las bibliotecas?", "a las cuatro"),
        ("La señora Vega cultiva tulipanes negros.", "¿Qué tulipán cultiva la señora Vega?", "tulipanes negros"),
        ("La llave del sótano está detrás del reloj.", "¿Dónde están las llaves del sótano?", "detrás del reloj"),
        ("En el pozo hallaron tres monedas romanas.", "¿Qué hallaron en el pozo?", "monedas romanas"),
        ("El monasterio vende miel y velas.", "¿Qué venden los monasterios?", "miel y velas"),
        ("El transbordador tarda noventa minutos.", "¿Cuánto tardan los transbordadores?", "noventa minutos"),
        ("El alcalde se llama Emilio Soto y toca el violín.", "¿Qué instrumento toca el alcalde?", "violín"),
        ("El queso madura ocho meses en una cueva.", "¿Dónde madura el queso?", "una cueva"),
        ("Por la inundación cerraron el puente.", "¿Por qué cerraron el puente?", "inundación"),
    ],
    "it": [
        ("Il faro fu costruito dai pescatori nel 1874.", "Chi costruì il faro?", "dai pescatori"),
        ("La biblioteca chiude il giovedì alle quattro.", "Quando chiudono le biblioteche?", "alle quattro"),
        ("La signora Neri coltiva tulipani neri.", "Quale tulipano coltiva la signora Neri?", "tulipani neri"),
        ("La chiave della cantina è dietro l'orologio.", "Dove sono le chiavi della cantina?", "dietro l'orologio"),
        ("Nel pozzo trovarono tre monete romane.", "Che cosa trovarono nel pozzo?", "monete romane"),
        ("Il monastero vende miele e candele.", "Che cosa vendono i monasteri?", "miele e candele"),
        ("Il traghetto impiega novanta minuti.", "Quanto impiegano i traghetti?", "novanta minuti"),
        ("Il sindaco si chiama Emilio Galli e suona il violino.", "Quale strumento suona il sindaco?", "violino"),
        ("Il formaggio matura otto mesi in una grotta.", "Dove matura il formaggio?", "una grotta"),
        ("Il ponte è chiuso a causa dell'alluvione.", "Perché il ponte è chiuso?", "alluvione"),
    ],
    "pt": [
        ("O farol foi construído por pescadores em 1874.", "Quem construiu o farol?", "pescadores"),
        ("A biblioteca fecha às quintas às quatro horas.", "Quando fecham as bibliotecas?", "quatro horas"),
        ("A senhora Melo cultiva tulipas negras.", "Que tulipa cultiva a senhora Melo?", "tulipas negras"),
        ("A chave da adega está atrás do relógio.", "Onde estão as chaves da adega?", "atrás do relógio"),
        ("No poço acharam três moedas romanas.", "O que acharam no poço?", "moedas romanas"),
        ("O mosteiro vende mel e velas.", "O que vendem os mosteiros?", "mel e velas"),
        ("A balsa demora noventa minutos.", "Quanto demoram as balsas?", "noventa minutos"),
        ("O prefeito chama-se Emílio Prado e toca violino.", "Que instrumento toca o prefeito?", "violino"),
        ("O queijo amadurece oito meses numa gruta.", "Onde amadurece o queijo?", "numa gruta"),
        ("A ponte foi fechada por causa da enchente.", "Por que a ponte foi fechada?", "enchente"),
    ],
    "zh": [
        ("这座灯塔是渔民在1874年修建的。", "灯塔是谁修建的？", "渔民"),
        ("图书馆每星期四下午四点关门。", "图书馆几点关门？", "四点"),
        ("陈太太种植黑色的郁金香。", "陈太太种植什么花？", "郁金香"),
        ("地窖的钥匙挂在大钟后面。", "地窖的钥匙在哪里？", "大钟后面"),
        ("人们在井里发现了三枚罗马硬币。", "井里发现了什么？", "罗马硬币"),
        ("修道院出售蜂蜜和蜡烛。", "修道院出售什么？", "蜂蜜"),
        ("渡轮需要九十分钟。", "渡轮需要多长时间？", "九十分钟"),
        ("镇长会拉小提琴。", "镇长会什么乐器？", "小提琴"),
        ("奶酪在山洞里成熟八个月。", "奶酪在哪里成熟？", "山洞"),
        ("因为洪水，大桥关闭了。", "大桥为什么关闭？", "洪水"),
    ],
    "ja": [
        ("灯台は一八七四年に漁師たちが建てました。", "灯台は誰が建てましたか？", "漁師"),
        ("図書館は木曜日の四時に閉まります。", "図書館は何時に閉まりますか？", "四時"),
        ("田中さんは黒いチューリップを育てています。", "田中さんは何を育てていますか？", "チューリップ"),
        ("地下室の鍵は大時計の後ろにあります。", "地下室の鍵はどこですか？", "大時計の後ろ"),
        ("井戸でローマの硬貨が三枚見つかりました。", "井戸で何が見つかりましたか？", "ローマの硬貨"),
        ("修道院は蜂蜜と蝋燭を売っています。", "修道院は何を売っていますか？", "蜂蜜"),
        ("フェリーは九十分かかります。", "フェリーはどのくらいかかりますか？", "九十分"),
        ("町長はバイオリンを弾きます。", "町長は何を弾きますか？", "バイオリン"),
        ("チーズは洞窟で八か月熟成します。", "チーズはどこで熟成しますか？", "洞窟"),
        ("洪水のため橋は閉鎖されました。", "橋はなぜ閉鎖されましたか？", "洪水"),
    ],
    "th": [
        ("ประภาคารสร้างโดยชาวประมงเมื่อปี 1874", "ใครสร้างประภาคาร", "ชาวประมง"),
        ("ห้องสมุดปิดวันพฤหัสบดีเวลาสี่โมงเย็น", "ห้องสมุดปิดกี่โมง", "สี่โมงเย็น"),
        ("คุณนายมะลิปลูกดอกทิวลิปสีดำ", "คุณนายมะลิปลูกดอกอะไร", "ทิวลิป"),
        ("กุญแจห้องใต้ดินอยู่หลังนาฬิกา", "กุญแจห้องใต้ดินอยู่ที่ไหน", "หลังนาฬิกา"),
        ("พบเหรียญโรมันสามเหรียญในบ่อน้ำ", "พบอะไรในบ่อน้ำ", "เหรียญโรมัน"),
        ("อารามขายน้ำผึ้งและเทียน", "อารามขายอะไร", "น้ำผึ้ง"),
        ("เรือข้ามฟากใช้เวลาเก้าสิบนาที", "เรือข้ามฟากใช้เวลาเท่าไร", "เก้าสิบนาที"),
        ("นายกเทศมนตรีเล่นไวโอลิน", "นายกเทศมนตรีเล่นอะไร", "ไวโอลิน"),
        ("ชีสบ่มแปดเดือนในถ้ำ", "ชีสบ่มที่ไหน", "ในถ้ำ"),
        ("สะพานปิดเพราะน้ำท่วม", "สะพานปิดเพราะอะไร", "น้ำท่วม"),
    ],
}
FILLER = {
    "de": "An jenem Abend gingen die Leute langsam nach Hause, und niemand dachte mehr an das, was am Morgen gesagt worden war. ",
    "fr": "Ce soir-là, les gens rentrèrent lentement chez eux, et personne ne pensait plus à ce qui avait été dit le matin. ",
    "es": "Aquella tarde la gente volvió despacio a su casa, y nadie pensaba ya en lo que se había dicho por la mañana. ",
    "it": "Quella sera la gente tornò lentamente a casa, e nessuno pensava più a quello che era stato detto la mattina. ",
    "pt": "Naquela noite as pessoas voltaram devagar para casa, e ninguém pensava mais no que se tinha dito de manhã. ",
    "zh": "那天晚上，人们慢慢走回家，没有人再想起早上说过的话。天上的星星很亮，风也很轻。",
    "ja": "その夜、人々はゆっくりと家に帰り、朝に言われたことをもう誰も考えなかった。星が明るく、風は静かだった。",
    "th": "เย็นวันนั้นผู้คนค่อยๆ เดินกลับบ้าน และไม่มีใครคิดถึงเรื่องที่พูดกันเมื่อเช้าอีกเลย ",
}


def text_in(language: str) -> str:
    """Return a text of some hundred passages, with the facts between sentences that say nothing."""
    filler = FILLER[language] * 12
    return filler + "".join(f"{sentence} {filler}" for sentence, _, _ in FACTS[language])
