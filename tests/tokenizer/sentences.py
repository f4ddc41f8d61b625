"""One sentence in sixteen languages."""

SENTENCES = (
    'Dinner with Ada on 25 May at 7 pm, don\'t be late. {"title":"Dinner","date":"2025-05-25"}',
    "Middag med Ada den 25. maj klokken 19, kom ikke for sent.",
    "Etentje met Ada op 25 mei om 19 uur, kom niet te laat.",
    "Dîner avec Ada le 25 mai à 19 h, n'arrive pas en retard. L'homme qu'elle aime.",
    "Abendessen mit Ada am 25. Mai um 19 Uhr, komm nicht zu spät.",
    "Cena con Ada il 25 maggio alle 19, non fare tardi. Dell'arte.",
    "Middag med Ada 25. mai klokka 19, ikke kom for sent.",
    "Jantar com a Ada em 25 de maio às 19h, não se atrase.",
    "Cena con Ada el 25 de mayo a las 19 h, no llegues tarde.",
    "Middag med Ada den 25 maj klockan 19, kom inte för sent.",
    "Ada ile 25 Mayıs'ta saat 19'da akşam yemeği, geç kalma. İstanbul'dan.",
    "5月25日晚上7点和艾达吃晚饭，不要迟到。",
    "5月25日晚上7點和艾達吃晚飯，不要遲到。",
    "5月25日の午後7時にエイダと夕食、遅れないでください。",
    "5월 25일 오후 7시에 에이다와 저녁 식사, 늦지 마세요.",
    "Ăn tối với Ada ngày 25 tháng 5 lúc 19 giờ, đừng đến muộn.",
)
